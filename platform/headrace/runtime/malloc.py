"""Configures the C library's `malloc` for processes that allocate and free large buffers all the time.

By default, glibc returns freed buffers of a batch to the kernel, which then has to supply and clear new pages for the
next batch. Without this module, a file source would spend a tenth of its time with these page faults. If the C library
has no `mallopt`, the module changes nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 16 * 1024 * 1024
"""Up to this much free memory at the end of a heap stays in the process."""
_HEAP_BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""Larger buffers are returned to the kernel when they are freed. glibc accepts no larger value."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded at import, before any fork


def keep_freed_memory() -> None:
    """Let this process reuse freed memory, instead of returning it to the kernel after each batch."""
    configure = mallopt()
    if configure is not None:
        configure(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        configure(_M_MMAP_THRESHOLD, _HEAP_BUFFER_BYTES_MAX)


def mallopt() -> Callable[[int, int], int] | None:
    """Return the C library's function that configures `malloc`, or None if it has none."""
    found: Callable[[int, int], int] | None = getattr(_libc, "mallopt", None)
    return found
