"""Kills Spark's Python processes when the task's process exits.

A Spark Python process detects the JVM's exit only when it next reads from its socket. This can take
long if the process is blocked in C code. The kernel's parent-death signal does not help, because
these processes are children of the JVM's Python daemon, not of the task. A thread that waits for the
task's process to exit works in all cases.
"""

from __future__ import annotations

import os
import select
import signal
import threading

_watched: set[tuple[int, int]] = set()


def exit_with_process(pid: int) -> None:
    """Kill the current process as soon as process `pid` exits. Repeated calls are cheap.

    If the current process is the leader of a process group, kill the whole group: Spark's daemon leads the group of the
    workers that it forks.
    On a platform without pidfds, this function does nothing.
    """
    if not hasattr(os, "pidfd_open") or (os.getpid(), pid) in _watched:
        return
    # A forked child inherits the set but not the thread, so each entry includes the pid of the process with the thread.
    _watched.add((os.getpid(), pid))
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    except OSError:
        return  # without a pidfd, the process exits only when it next reads from the JVM's socket
    threading.Thread(target=_kill_after_exit, args=(descriptor,), name="process-watch", daemon=True).start()


def _kill_after_exit(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    pid = os.getpid()
    if os.getpgrp() == pid:
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
