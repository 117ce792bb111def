"""Tests of the context manager `withheld`, which blocks signals in the child processes that are started inside it."""

from __future__ import annotations

import signal
import subprocess
import sys

from headrace.runtime.group_signals import GROUP_SIGNALS, withheld

_SHOW_MASK = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


def test_signals_are_blocked_in_child_processes_started_in_a_withheld_block_and_the_parents_mask_is_restored() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with withheld():
        shown = subprocess.run([sys.executable, "-c", _SHOW_MASK], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(sorted(map(int, before | GROUP_SIGNALS)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
