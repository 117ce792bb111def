"""Ends a Python process of Spark's when the task that it works for dies.

Spark's Python processes notice the end of their JVM by a closed socket, once they look at it: one that waits in C
code looks late. They are children of the JVM's daemon, and not of the task, so the kernel's parent-death signal does
not reach them; a thread that waits for the task's process does.
"""

from __future__ import annotations

import os
import select
import signal
import threading

_watched: set[tuple[int, int]] = set()


def die_with(pid: int) -> None:
    """Kill this process as soon as process `pid` is gone; cheap to call again. Linux only, elsewhere without effect."""
    if not hasattr(os, "pidfd_open") or (os.getpid(), pid) in _watched:
        return
    _watched.add((os.getpid(), pid))  # with our own id: a fork inherits the set and not the thread
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    except OSError:
        return  # no pidfd in this kernel or sandbox: closed sockets have to do
    threading.Thread(target=_wait, args=(descriptor,), name="lifeline", daemon=True).start()


def _wait(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)
