"""Changes the fork servers that a test starts, so that they log each step of their warm-up to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SITE_CUSTOMIZE = """
import sys
if "headrace.runtime.fork_server" in sys.orig_argv:
    import time
    from headrace.runtime import fork_server, warm_up
    fork_server._IDLE_S = {idle_s}
    run_step = warm_up._run_step
    def log_step(*arguments):
        began_s = time.monotonic()
        run_step(*arguments)
        open({log!r}, "a").write(f"{{began_s}} ")
    warm_up._run_step = log_step
"""


def customize_fork_servers(directory: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new Python processes run `code` when they start. `directory` is empty, and is added to PYTHONPATH."""
    (directory / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]))


class WarmUpLog:
    """The log of all fork servers that start after the creation of this object.

    The fork servers start their warm-up when they have been idle for `idle_s`.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float) -> None:
        self._path = directory / "steps"
        code = _SITE_CUSTOMIZE.format(log=str(self._path), idle_s=idle_s)
        customize_fork_servers(directory, code, monkeypatch)

    def steps_s(self) -> list[float]:
        """Return the start times (`time.monotonic()`) of the completed steps."""
        return [float(text) for text in self._path.read_text().split()] if self._path.exists() else []
