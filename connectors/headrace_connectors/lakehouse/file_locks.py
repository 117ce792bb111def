"""Locks of files that say whether a process is alive: the operating system releases them when the process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path, flags: int) -> int:
    """Open and lock a file. Return its descriptor. Raises OSError; BlockingIOError if another process uses it."""
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise BlockingIOError(f"{path} was deleted")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
