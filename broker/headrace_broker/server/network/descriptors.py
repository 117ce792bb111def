"""File descriptors: as many as the system gives, and some kept back from connections.

Without a reserve, a peer that opens connections until there are no descriptors left would keep every log from being
opened, synced or rolled.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

_LIMIT_MAX = 1 << 20
_OPEN_SEGMENTS_MAX = 256
_OTHER_FILES = 128
"""Listeners, locks, files that are written or synced by name, and a burst of connections about to be refused."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How a limit on descriptors is divided."""

    connections_max: int
    open_segments_max: int

    @classmethod
    def of(cls, limit: int) -> DescriptorBudget:
        """At least half of a small limit is the connections'."""
        open_segments_max = min(_OPEN_SEGMENTS_MAX, max(4, limit // 4))
        return cls(max(1, limit - open_segments_max - min(_OTHER_FILES, limit // 4)), open_segments_max)


def descriptor_budget() -> DescriptorBudget:
    """The budget under this process's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorBudget.of(_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft)


def raise_descriptor_limit() -> None:
    """Take what the system allows: the usual soft limit of 1024 is made for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
