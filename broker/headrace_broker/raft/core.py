"""The Raft state machine of one node of the metadata quorum: leader election and log replication.

Inputs are requests, responses and the current time; outputs are `Effect`s, which `raft.effects` documents. The current
`Role` handles most events. This module holds the state that survives a role change (epoch, vote, high watermark) and
the rule common to all roles: a node that receives a higher epoch enters that epoch. Spec: KIP-595, KIP-996.

The state machine gives these guarantees under message loss, delay and duplication:
- Each epoch has at most one leader.
- A voter votes at most once per epoch, and its vote is on disk before it responds.
- The high watermark never decreases, and a majority of the voters has every record below it on disk.
- A leader advances the high watermark only to an offset after a record of the leader's own epoch.

Any process can send a request, so a request may raise the epoch only by a small number. Otherwise a single request
could use up all 32-bit epochs. A node that is many epochs behind learns the current epoch from the responses to its own
requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.effects import (
    Effect,
    HighWatermarkAdvanced,
    LeaderChanged,
    Persist,
    SendRequest,
    SendResponse,
    Token,
)
from headrace_broker.raft.log_port import OffsetAndEpoch, RaftLog
from headrace_broker.raft.quorum_state import EPOCH_INCREASE_MAX, EPOCH_MAX, NO_NODE, QuorumState
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from random import Random


class Raft:
    """One node of the quorum, voter or observer. Each method that handles an input returns the effects to execute."""

    def __init__(self, config: RaftConfig, log: RaftLog, state: QuorumState, rng: Random) -> None:
        self.config = config
        self.log = log
        self.rng = rng
        self.state = state
        snapshot = log.latest_snapshot()
        self.high_watermark = log.log_start_offset if snapshot is None else max(snapshot[0], log.log_start_offset)
        self.role: Role = Role(self)
        self._effects: list[Effect] = []
        self._reported_leader: tuple[int, int] = (NO_NODE, -1)
        self._connection_refused_ms: dict[int, int] = {}

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def leader_id(self) -> int:
        """The leader of the current epoch, or -1 if the leader is unknown."""
        return self.role.leader_id

    @property
    def log_end(self) -> OffsetAndEpoch:
        """The end of the log, as (log end offset, epoch of the last record)."""
        return self.log.log_end_offset, self.log.last_fetched_epoch

    @property
    def is_caught_up(self) -> bool:
        """Whether this node has committed every record that the leader reported as committed."""
        return self.role.is_caught_up

    # -- inputs -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Enter the role in which the node starts, which depends on the quorum state on disk.

        If this node is the only voter, it elects itself immediately. A restarted leader must be elected again.
        """
        from headrace_broker.raft.follower import Follower
        from headrace_broker.raft.nominees import Candidate, Unattached

        last_epoch = self.log.last_fetched_epoch
        if last_epoch > self.state.leader_epoch:
            self.state = QuorumState(leader_epoch=last_epoch, voters=tuple(sorted(self.config.voters)))
        leader_id = self.state.leader_id
        if self.config.voters == {self.config.node_id}:
            self.transition_to(Candidate(self, now_ms), now_ms)
        elif leader_id not in (NO_NODE, self.config.node_id):
            self.transition_to(Follower(self, leader_id, now_ms), now_ms)
        else:
            # Start an election early. A working quorum is not disrupted, because followers that have a leader reject
            # the pre-vote.
            wait_ms = self.random_ms_below(self.config.election_timeout_ms // 4)
            self.transition_to(Unattached(self, now_ms, wait_ms), now_ms)
        return self._drain_effects()

    def tick(self, now_ms: int) -> list[Effect]:
        """Run the timers that have expired."""
        self.role.tick(now_ms)
        return self._drain_effects()

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` must be called next, or None if no timer is set."""
        return self.role.deadline_ms()

    def handle_request(self, request: Request[Any], token: Token, now_ms: int) -> list[Effect]:
        """Handle another node's request. This call or a later call returns the `SendResponse` with this `token`."""
        if isinstance(request, VoteRequest):
            self._on_vote(request, token, now_ms)
        elif isinstance(request, BeginQuorumEpochRequest):
            self._on_begin_quorum_epoch(request, token, now_ms)
        elif isinstance(request, EndQuorumEpochRequest):
            self._on_end_quorum_epoch(request, token, now_ms)
        elif isinstance(request, FetchRequest):
            self._on_fetch(request, token, now_ms)
        elif isinstance(request, FetchSnapshotRequest):
            self._on_fetch_snapshot(request, token, now_ms)
        else:
            raise TypeError(f"{type(request).__name__} is not a Raft request")
        return self._drain_effects()

    def handle_response(
        self, node_id: int, request: Request[Any], response: Response | None, now_ms: int
    ) -> list[Effect]:
        """Handle the response to a `SendRequest`. `response` is None if the request failed or timed out."""
        partition = None if response is None else messages.metadata_partition(messages.response_topics(response))
        if partition is not None:
            leader_id, epoch = messages.leader_and_epoch(partition)
            if getattr(partition, "vote_granted", False):
                # ignore the leader in the response, because a voter that grants a vote stops following that leader
                leader_id = NO_NODE
            self.maybe_transition(epoch, leader_id, now_ms)
        self.role.on_response(node_id, request, partition, now_ms)
        return self._drain_effects()

    def on_connection_refused(self, node_id: int, now_ms: int) -> list[Effect]:
        """Handle the exit of another node's process: the node closed its connection and refused a new connection."""
        self._connection_refused_ms[node_id] = now_ms
        self.role.on_connection_refused(node_id, now_ms)
        return self._drain_effects()

    def on_appended(self, now_ms: int) -> list[Effect]:
        """Handle the records that the caller has appended to the log of this node, which is the leader."""
        self.role.on_appended(now_ms)
        return self._drain_effects()

    def on_flushed(self, now_ms: int) -> list[Effect]:
        """Handle an advance of the log's flushed offset."""
        self.role.on_flushed(now_ms)
        return self._drain_effects()

    def resign(self, now_ms: int) -> list[Effect]:
        """If this node is the leader, resign and send EndQuorumEpoch with the preferred successors."""
        self.role.resign(now_ms)
        return self._drain_effects()

    # -- requests ---------------------------------------------------------------------------------------------------

    def _validate_request(self, cluster_id: str | None, partition: Any | None) -> ErrorCode:
        if cluster_id is not None and self.config.cluster_id and cluster_id != self.config.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        return ErrorCode.INVALID_REQUEST if partition is None else ErrorCode.NONE

    def _on_vote(self, request: VoteRequest, token: Token, now_ms: int) -> None:
        from headrace_broker.raft.nominees import Unattached

        partition = messages.metadata_partition(request.topics)
        error = self._validate_request(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._validate_vote(request, partition)
        if partition is None or error is not ErrorCode.NONE:
            self.respond(token, messages.vote_response(error, self.leader_id, self.epoch))
            return
        candidate = partition.replica_id
        self.maybe_transition(partition.replica_epoch, NO_NODE, now_ms)
        up_to_date = (partition.last_offset_epoch, partition.last_offset) >= self.log_end[::-1]
        if partition.pre_vote:
            granted = up_to_date and self.role.grants_pre_vote
            if granted:
                self.role.on_pre_vote_granted(candidate, (partition.last_offset, partition.last_offset_epoch), now_ms)
        else:
            granted = self.state.voted_id == candidate or (
                up_to_date and self.state.voted_id == NO_NODE and self.leader_id == NO_NODE
            )
            if granted and self.state.voted_id != candidate:
                self.persist(replace(self.state, voted_id=candidate))
                self.transition_to(Unattached(self, now_ms), now_ms)
        self.respond(token, messages.vote_response(ErrorCode.NONE, self.leader_id, self.epoch, granted=granted))

    def _validate_vote(self, request: VoteRequest, partition: Any) -> ErrorCode:
        if request.voter_id not in (NO_NODE, self.config.node_id):
            return ErrorCode.INVALID_VOTER_KEY
        if not self.config.is_voter or partition.replica_id not in self.config.voters:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if (
            partition.last_offset < 0
            or partition.last_offset_epoch < 0
            or not self._is_plausible(partition.replica_epoch)
        ):
            return ErrorCode.INVALID_REQUEST
        if partition.replica_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _on_begin_quorum_epoch(self, request: BeginQuorumEpochRequest, token: Token, now_ms: int) -> None:
        error = self._validate_and_follow_leader(
            request.cluster_id, messages.metadata_partition(request.topics), now_ms
        )
        self.respond(token, messages.begin_quorum_epoch_response(error, self.leader_id, self.epoch))

    def _on_end_quorum_epoch(self, request: EndQuorumEpochRequest, token: Token, now_ms: int) -> None:
        partition = messages.metadata_partition(request.topics)
        error = self._validate_and_follow_leader(request.cluster_id, partition, now_ms)
        if partition is not None and error is ErrorCode.NONE:
            self.role.on_leader_resigned(messages.preferred_successors(partition), now_ms)
        self.respond(token, messages.end_quorum_epoch_response(error, self.leader_id, self.epoch))

    def _validate_and_follow_leader(self, cluster_id: str | None, partition: Any, now_ms: int) -> ErrorCode:
        """Validate a BeginQuorumEpoch or EndQuorumEpoch request, and return the error code.

        If the request is valid, follow the leader that it names.
        """
        error = self._validate_request(cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._validate_leader(partition)
            if error is ErrorCode.NONE:
                self.maybe_transition(partition.leader_epoch, partition.leader_id, now_ms)
        return error

    def _validate_leader(self, partition: Any) -> ErrorCode:
        if partition.leader_id not in self.config.voters:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if not self._is_plausible(partition.leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if partition.leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.leader_epoch == self.epoch and self.leader_id not in (NO_NODE, partition.leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _is_plausible(self, epoch: int) -> bool:
        return 0 <= epoch <= min(self.epoch + EPOCH_INCREASE_MAX, EPOCH_MAX)

    def _on_fetch(self, request: FetchRequest, token: Token, now_ms: int) -> None:
        partition = messages.metadata_partition(request.topics)
        error = self._validate_request(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            is_valid = partition.fetch_offset >= 0 and partition.last_fetched_epoch >= 0
            request_epoch = partition.current_leader_epoch
            error = self._validate_leader_only_request(request_epoch) if is_valid else ErrorCode.INVALID_REQUEST
        if partition is None or error is not ErrorCode.NONE:
            self.respond(token, messages.fetch_response(error, self.leader_id, self.epoch))
            return
        self.role.on_fetch(request, partition, token, now_ms)

    def _on_fetch_snapshot(self, request: FetchSnapshotRequest, token: Token, now_ms: int) -> None:
        partition = messages.metadata_partition(request.topics)
        error = self._validate_request(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._validate_leader_only_request(partition.current_leader_epoch)
        if partition is None or error is not ErrorCode.NONE:
            self.respond(token, messages.fetch_snapshot_response(error, self.leader_id, self.epoch))
            return
        self.role.on_fetch_snapshot(request, partition, token, now_ms)

    def _validate_leader_only_request(self, request_epoch: int) -> ErrorCode:
        if request_epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader_id != self.config.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.FENCED_LEADER_EPOCH if 0 <= request_epoch < self.epoch else ErrorCode.NONE

    # -- for the roles ----------------------------------------------------------------------------------------------

    def maybe_transition(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Move to `epoch` if it is higher than the current epoch. `leader_id` is its leader, or -1 if unknown.

        If `epoch` is the current epoch, follow `leader_id` unless this node already knows the leader of the epoch.
        """
        from headrace_broker.raft.follower import Follower
        from headrace_broker.raft.nominees import Unattached

        if (
            epoch > EPOCH_MAX
            or epoch < self.epoch
            or (epoch == self.epoch and (self.leader_id != NO_NODE or leader_id == NO_NODE))
        ):
            return
        if leader_id == self.config.node_id:
            leader_id = NO_NODE  # this node was the leader of `epoch` until it restarted
            if epoch == self.epoch:
                return
        if epoch > self.epoch:
            self.persist(QuorumState(epoch, leader_id, NO_NODE, tuple(sorted(self.config.voters))))
        if leader_id == NO_NODE:
            self.transition_to(Unattached(self, now_ms), now_ms)
        else:
            self.transition_to(Follower(self, leader_id, now_ms), now_ms)

    def transition_to(self, role: Role, now_ms: int) -> None:
        """Leave the current role and enter `role`. The current role first completes its pending requests."""
        self.role.leave(now_ms)
        self.role = role
        if self.state.leader_id != role.leader_id and role.leader_id != NO_NODE:
            self.persist(replace(self.state, leader_id=role.leader_id))
        role.enter(now_ms)
        leader_and_epoch = (self.role.leader_id, self.epoch)
        if self.role is role and leader_and_epoch != self._reported_leader:
            self._reported_leader = leader_and_epoch
            self._effects.append(LeaderChanged(*leader_and_epoch))

    def persist(self, state: QuorumState) -> None:
        """Emit a `Persist` if `state` has changed.

        The caller writes the state to disk before it executes a later effect.
        """
        if state != self.state:
            self.state = state
            self._effects.append(Persist(state))

    def send(self, node_id: int, request: Request[Any]) -> None:
        self._effects.append(SendRequest(node_id, request))

    def respond(self, token: Token, response: Response) -> None:
        self._effects.append(SendResponse(token, response))

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def advance_high_watermark(self, offset: int) -> bool:
        """Advance the high watermark to `offset`. Returns False if `offset` is not above the current high watermark.

        After start-up, only this method changes the high watermark. Its callers are
        `Leader._maybe_advance_high_watermark`, `Follower._advance_high_watermark` and, after a snapshot download,
        `Follower._handle_snapshot_chunk`.
        """
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self._effects.append(HighWatermarkAdvanced(offset))
        return True

    def earliest_send_ms(self, node_id: int, now_ms: int) -> int:
        """Return when to send a request to the node: now, or after a backoff if it recently refused a connection."""
        refused_ms = self._connection_refused_ms.get(node_id)
        return now_ms if refused_ms is None else max(now_ms, refused_ms + self.config.connection_refused_backoff_ms)

    def random_ms_below(self, bound_ms: int) -> int:
        """Return a random integer in [0, bound_ms)."""
        return int(self.rng.random() * bound_ms)

    def _drain_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
