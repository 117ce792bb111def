"""What a node of the quorum can be: the questions and events that each role answers in its own way.

A role belongs to one epoch and is never reused: answers that come late reach the next role, which asks for nothing it
has not sent itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.notation import Request
from headrace_broker.raft.effects import Token
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import NO_ONE

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Role:
    """A role in which nothing happens; the others say what they do differently."""

    leader_id: int = NO_ONE
    grants_pre_vote: bool = False
    """Whether a candidate that is as far as this node would get its vote."""

    is_caught_up: bool = False
    """Whether what the leader has committed is committed here."""

    def __init__(self, raft: Raft) -> None:
        self.raft = raft

    def enter(self, now_ms: int) -> None:
        """The role begins."""

    def leave(self, now_ms: int) -> None:
        """The role ends."""

    def deadline_ms(self) -> int | None:
        """When `tick` is wanted next."""
        return None

    def tick(self, now_ms: int) -> None:
        """Do what is due."""

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        """An answer, None when there was none.  Epoch and leader that it told of are taken up already."""

    def on_pre_vote_granted(self, candidate: int, end: OffsetAndEpoch, now_ms: int) -> None:
        """Another node was told that it would be elected."""

    def on_refused(self, node_id: int, now_ms: int) -> None:
        """A node's process is dead."""

    def on_appended(self, now_ms: int) -> None:
        """The leader's log has grown."""

    def on_flushed(self, now_ms: int) -> None:
        """More of the log is on disk."""

    def on_fetch(self, request: FetchRequest, partition: Any, token: Token, now_ms: int) -> None:
        """A replica asks; only a leader is asked."""

    def on_fetch_snapshot(self, request: FetchSnapshotRequest, partition: Any, token: Token, now_ms: int) -> None:
        """A replica asks for a snapshot; only a leader is asked."""

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        """The leader has given up and names who should try first."""

    def resign(self, now_ms: int) -> None:
        """Give up leadership."""
