"""Changes the fork servers that a test starts, so that they log each step of their warm-up to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SITE_CUSTOMIZE = """
import sys
if "headrace.runtime.fork_server" in sys.orig_argv:
    from headrace.runtime import warm_up
    run_step = warm_up._run_step
    def log_step(*arguments):
        run_step(*arguments)
        open({log!r}, "a").write("step")
    warm_up._run_step = log_step
"""


def customize_fork_servers(directory: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new Python processes run `code` when they start. `directory` is empty, and is added to PYTHONPATH."""
    (directory / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]))


class WarmUpLog:
    """The log of all fork servers that start after the creation of this object."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = directory / "steps"
        customize_fork_servers(directory, _SITE_CUSTOMIZE.format(log=str(self._path)), monkeypatch)

    def count(self) -> int:
        """Return the number of completed steps."""
        return self._path.read_text().count("step") if self._path.exists() else 0
