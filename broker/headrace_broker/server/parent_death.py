"""Terminates this process when its parent process dies."""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int) -> bool:
    """Ask the kernel to send this process the signal `signal_number` when its parent dies (Linux only).

    Returns False if the parent, the process `parent_pid`, is already dead.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    return os.getppid() == parent_pid
