"""The effects that the Raft state machine (`core.Raft`) returns to its caller.

The caller executes the effects in order and completes each `Persist` before the next effect. `core.Raft` already uses
the new state while a `Persist` is in progress, so the caller passes no input to `core.Raft` until the state is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft.quorum_state import QuorumState

Token = Any  # identifies a pending request; `core.Raft` returns the token with the response and does not read it


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the quorum-state file and fsync it."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request. The caller then calls `Raft.handle_response` exactly once, with None if no response arrived."""

    node_id: int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Send the response to the request that `token` identifies."""

    token: Token
    response: Response


@dataclass(frozen=True, slots=True)
class Flush:
    """Fsync the log, and then call `Raft.on_flushed`. Several `Flush` effects may share one fsync."""


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """The high watermark is now `offset`: every record below it is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader or the epoch has changed. `leader_id` is -1 if the leader of `epoch` is unknown."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """A snapshot replaced the log: discard the state built from earlier records and replay from the snapshot."""

    end_offset: int
    epoch: int


Effect = Persist | SendRequest | SendResponse | Flush | HighWatermarkAdvanced | LeaderChanged | SnapshotLoaded
