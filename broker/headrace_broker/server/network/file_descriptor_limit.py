"""Raises the limit on file descriptors (`ulimit -n`) as far as allowed, and reserves some descriptors for log files.

If no descriptors were reserved, a client could open connections until none are left. The broker could then not open,
sync or roll any log.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

_LIMIT_MAX = 1 << 20
_OPEN_SEGMENTS_MAX = 256
_OTHER_FILES = 128
"""The number of file descriptors for other purposes.

They are for listeners, lock files, files that are open only during a write or sync, and connections that the broker is
about to reject.
"""


@dataclass(frozen=True, slots=True)
class FileDescriptorBudget:
    """The numbers of file descriptors for connections and for log segments."""

    connections_max: int
    open_segments_max: int

    @classmethod
    def for_limit(cls, limit: int) -> FileDescriptorBudget:
        """Divide `limit` between connections and log segments; connections receive at least half of any limit."""
        open_segments_max = min(_OPEN_SEGMENTS_MAX, max(4, limit // 4))
        return cls(max(1, limit - open_segments_max - min(_OTHER_FILES, limit // 4)), open_segments_max)


def file_descriptor_budget() -> FileDescriptorBudget:
    """Divide this process's limit on file descriptors (`ulimit -n`) between connections and log segments."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FileDescriptorBudget.for_limit(_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft)


def raise_file_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit. The usual soft limit of 1024 exists for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
