"""What the quorum's core wants done.  The shell does it in this order, and each `Persist` is on disk before the next.

While a `Persist` is under way the core is told nothing: what it decided rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft.quorum_state import QuorumState

Token = Any  # names a request that waits; the core hands it back with the answer and never looks inside


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the quorum-state file and fsync it."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; exactly one `response` call must follow, with None when nothing came back."""

    node_id: int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request."""

    token: Token
    response: Response


@dataclass(frozen=True, slots=True)
class Flush:
    """Bring the log to disk and call `flushed`; several may share one fsync."""


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """Everything below `offset` is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """`leader_id` leads from now on, nobody is known to when it is -1."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The log was replaced by a snapshot: what was replayed before is void, replay from the snapshot."""

    end_offset: int
    epoch: int


Effect = Persist | Send | Reply | Flush | HighWatermark | LeaderChanged | SnapshotLoaded
