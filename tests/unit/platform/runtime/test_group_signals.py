"""Tests of the context manager `withheld`, which blocks signals in the child processes that are started inside it."""

from __future__ import annotations

import signal
import subprocess
import sys

from headrace.runtime.group_signals import GROUP_SIGNALS, withheld

_SHOW_MASK = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


def test_context_manager_blocks_sigint_and_sigterm_in_child_processes() -> None:
    """After the `with` statement, the parent process has its previous signal mask again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with withheld():
        shown = subprocess.run([sys.executable, "-c", _SHOW_MASK], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(sorted(map(int, before | GROUP_SIGNALS)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
