"""What a child inherits while signals are withheld, and what stays with the parent."""

from __future__ import annotations

import signal
import subprocess
import sys

from headrace.runtime.group_signals import GROUP_SIGNALS, withheld

_SHOW_MASK = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


def test_children_begin_with_the_signals_blocked_and_the_parent_gets_its_own_back() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with withheld():
        shown = subprocess.run([sys.executable, "-c", _SHOW_MASK], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(sorted(map(int, before | GROUP_SIGNALS)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
