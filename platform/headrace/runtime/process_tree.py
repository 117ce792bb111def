"""Process trees: every child process is killed when the process for which it works ends.

On Linux, direct children use a parent-death signal. If a process has set the sub-reaper flag, the kernel makes its
orphaned descendants its children, so that no descendant can escape by forking. On other systems, psutil lists the tree.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded at import, before any fork


def signal_at_death_of(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent dies.

    If the parent is dead already, signal this process now.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Make this process the new parent of every descendant whose own parent dies."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """Set the short name (15 bytes) that `ps` and `top` show."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's direct children. If the process is dead, the list is empty."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return [] if _libc is not None else _children_by_psutil(pid)
    found: list[int] = []
    for thread in threads:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return found


def kill_descendants(spare: Container[int] = ()) -> None:
    """Kill and reap all descendants of this process, except the children in `spare` and their descendants.

    Requires that `adopt_orphans` was called. The kernel makes the children of a dying process children of this process
    before this process can reap the dying process. So once all children are reaped, no descendant is left. It would not
    be enough that all descendants in a list are zombies: a process that dies while the list is made may have had
    children.
    """
    while children := [child for child in children_of(os.getpid()) if child not in spare]:
        for child in children:
            kill_tree(child)
            _reap(child)
        time.sleep(0.001)  # let the killed processes end


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants."""
    below = _descendants(pid)
    for target in (pid, *below):
        _kill(target)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = children_of(pid)
    while queue:
        process = queue.pop()
        found.append(process)
        queue += children_of(process)
    return found


def _reap(child: int) -> None:
    with suppress(ChildProcessError):  # another thread has reaped the process
        os.waitpid(child, os.WNOHANG)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _children_by_psutil(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []
