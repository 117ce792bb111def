"""`Role`, the base class of the Raft roles, with the properties and events that the roles override.

A role object belongs to one epoch and is never reused. `core.Raft` passes every response to the current role. A role
ignores responses to requests that an earlier role has sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.notation import Request
from headrace_broker.raft.effects import Token
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import NO_NODE

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Role:
    """The base class of all roles, which ignores every event.

    Subclasses override the methods for the events that they handle.
    """

    leader_id: int = NO_NODE
    grants_pre_vote: bool = False
    """Whether this node grants pre-votes; the candidate's log must also be at least as up to date as this node's."""

    is_caught_up: bool = False
    """Whether this node has committed every record that the leader reported as committed."""

    def __init__(self, raft: Raft) -> None:
        self.raft = raft

    def enter(self, now_ms: int) -> None:
        """Start the role. `core.Raft` calls this method after the node has changed to this role."""

    def leave(self, now_ms: int) -> None:
        """End the role. `core.Raft` calls this method before the node changes to another role."""

    def deadline_ms(self) -> int | None:
        """Return the time at which `tick` must be called next, or None if no timer is set."""
        return None

    def tick(self, now_ms: int) -> None:
        """Run the timers that have expired."""

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        """Handle the response of `node_id` to `request`.

        `partition` is the metadata partition's part of the response, or None if the request failed. `core.Raft` has
        already applied the response's epoch and leader id.
        """

    def on_pre_vote_granted(self, candidate: int, end: OffsetAndEpoch, now_ms: int) -> None:
        """Handle a pre-vote that this node granted to `candidate`, whose log ends at `end`."""

    def on_connection_refused(self, node_id: int, now_ms: int) -> None:
        """Handle the exit of another node's process: the node closed its connection and refused a new connection."""

    def on_appended(self, now_ms: int) -> None:
        """Handle an append to the log of this node, which is the leader."""

    def on_flushed(self, now_ms: int) -> None:
        """Handle an advance of the log's flushed offset."""

    def on_fetch(self, request: FetchRequest, partition: Any, token: Token, now_ms: int) -> None:
        """Handle a Fetch request of a replica. Called only on a leader."""

    def on_fetch_snapshot(self, request: FetchSnapshotRequest, partition: Any, token: Token, now_ms: int) -> None:
        """Handle a FetchSnapshot request of a replica. Called only on a leader."""

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        """Handle the resignation of the leader (EndQuorumEpoch).

        `successors` are the preferred successors, in order.
        """

    def resign(self, now_ms: int) -> None:
        """Resign as leader."""
