"""Tests of the collection of logged warnings."""

from __future__ import annotations

import logging
import threading

import pytest

from headrace.metrics import logs
from headrace.metrics.logged_warnings import logged_warnings

log = logging.getLogger("test_logged_warnings")


def test_only_warnings_and_errors_of_the_current_thread_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())
    logs.secrets.add(["hunter22"])
    with logged_warnings() as logged:
        log.info("a message")
        log.warning("cannot log in with %s", "hunter22")
        log.error("an error")
        other = threading.Thread(target=log.warning, args=("a warning of another thread",))
        other.start()
        other.join()
    log.warning("a later warning")
    assert logged == ["cannot log in with [hidden]", "an error"]
