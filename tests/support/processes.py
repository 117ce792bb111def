"""Finds processes by their command lines, and checks whether they are alive."""

from __future__ import annotations

from pathlib import Path

import psutil


def cleaner_pids(broker_pid: int) -> list[int]:
    """Return the pids of a broker's cleaner processes. Their command lines contain the broker's pid."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"headrace_broker.server.cleaning.cleaner_process" in words and str(broker_pid).encode() in words:
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not: it has exited, but its parent has not waited for it yet.

    A test's process may be the parent of a zombie that it has not started. An earlier test in the same process may have
    set the sub-reaper flag, as each worker does, so that the kernel makes all orphaned descendants its children.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """Return the process's arguments, or an empty list if it has exited."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
