"""The quorum's core: one node's part in electing a leader of the metadata log and in copying that log.

Pure: requests, answers and the time go in, `Effect`s come out (`raft.effects` says what is owed to them).  What the
node is at the moment is its `Role`; this module holds what outlives a role (the epoch, the vote, the high watermark)
and the one rule all roles share: a higher epoch is always followed.  Spec: KIP-595, KIP-996.

Guarantees, whatever is lost, delayed or repeated: one leader per epoch; a vote is on disk before it is given, and given
once per epoch; the high watermark never goes back and covers only what a majority has on disk, in an epoch whose leader
has committed a record of its own.

A request may come from anybody: it moves the epoch a little at most, else a single one could use up all epochs there
are.  A node that is far behind hears of the epoch when it asks the other voters itself.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.effects import Effect, HighWatermark, LeaderChanged, Persist, Reply, Send, Token
from headrace_broker.raft.log_port import OffsetAndEpoch, RaftLog
from headrace_broker.raft.quorum_state import EPOCH_LEAP_MAX, EPOCH_MAX, NO_ONE, QuorumState
from headrace_broker.raft.role import Role


class Raft:
    """One node of the quorum, voter or observer.  Every public method returns the effects of its call."""

    def __init__(self, config: RaftConfig, log: RaftLog, state: QuorumState, rng: Random) -> None:
        self.config = config
        self.log = log
        self.rng = rng
        self.state = state
        snapshot = log.latest_snapshot()
        self.high_watermark = log.log_start_offset if snapshot is None else max(snapshot[0], log.log_start_offset)
        self.role: Role = Role(self)
        self._effects: list[Effect] = []
        self._told: tuple[int, int] = (NO_ONE, -1)
        self._refused_ms: dict[int, int] = {}

    # -- what others may know ---------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch, -1 while it is not known."""
        return self.role.leader_id

    @property
    def end(self) -> OffsetAndEpoch:
        """Where the log ends: (offset, epoch of the last record)."""
        return self.log.log_end_offset, self.log.last_fetched_epoch

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that the leader is known to have committed is here."""
        return self.role.is_caught_up

    # -- inputs -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Begin.  A quorum of one elects itself at once; a former leader must be elected anew."""
        from headrace_broker.raft.follower import Follower
        from headrace_broker.raft.nominees import Candidate, Unattached

        last_epoch = self.log.last_fetched_epoch
        if last_epoch > self.state.leader_epoch:
            self.state = QuorumState(leader_epoch=last_epoch, voters=tuple(sorted(self.config.voters)))
        leader_id = self.state.leader_id
        if self.config.voters == {self.config.node_id}:
            self.become(Candidate(self, now_ms), now_ms)
        elif leader_id not in (NO_ONE, self.config.node_id):
            self.become(Follower(self, leader_id, now_ms), now_ms)
        else:
            # Asking early disturbs nobody: where a leader is, the pre-vote is refused.
            self.become(Unattached(self, now_ms, self.random_ms(self.config.election_timeout_ms // 4)), now_ms)
        return self._take()

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due by now."""
        self.role.tick(now_ms)
        return self._take()

    def next_deadline_ms(self) -> int | None:
        """When `tick` is wanted next."""
        return self.role.deadline_ms()

    def handle(self, request: Request[Any], token: Token, now_ms: int) -> list[Effect]:
        """Take another node's request; `Reply(token, ...)` follows, perhaps much later."""
        if isinstance(request, VoteRequest):
            self._on_vote(request, token, now_ms)
        elif isinstance(request, BeginQuorumEpochRequest):
            self._on_begin(request, token, now_ms)
        elif isinstance(request, EndQuorumEpochRequest):
            self._on_end(request, token, now_ms)
        elif isinstance(request, FetchRequest):
            self._on_fetch(request, token, now_ms)
        elif isinstance(request, FetchSnapshotRequest):
            self._on_fetch_snapshot(request, token, now_ms)
        else:
            raise TypeError(f"{type(request).__name__} is no request of the quorum")
        return self._take()

    def response(self, node_id: int, request: Request[Any], response: Response | None, now_ms: int) -> list[Effect]:
        """Take the answer to a `Send`, None when there was none."""
        partition = None if response is None else messages.only_partition(messages.topics_of(response))
        if partition is not None:
            leader_id, epoch = messages.leader_of(partition)
            if getattr(partition, "vote_granted", False):
                leader_id = NO_ONE  # who would vote for another has given up the leader that it names
            self.follow_epoch(epoch, leader_id, now_ms)
        self.role.on_response(node_id, request, partition, now_ms)
        return self._take()

    def refused(self, node_id: int, now_ms: int) -> list[Effect]:
        """The node's connection went and it refuses another: its process is dead."""
        self._refused_ms[node_id] = now_ms
        self.role.on_refused(node_id, now_ms)
        return self._take()

    def appended(self, now_ms: int) -> list[Effect]:
        """The leader's own records were appended to the log."""
        self.role.on_appended(now_ms)
        return self._take()

    def flushed(self, now_ms: int) -> list[Effect]:
        """The log's flushed offset has moved."""
        self.role.on_flushed(now_ms)
        return self._take()

    def resign(self, now_ms: int) -> list[Effect]:
        """Give up leadership on purpose and tell the others who is best placed; nothing for who does not lead."""
        self.role.resign(now_ms)
        return self._take()

    # -- requests ---------------------------------------------------------------------------------------------------

    def _refusal(self, cluster_id: str | None, partition: Any | None) -> ErrorCode:
        if cluster_id is not None and self.config.cluster_id and cluster_id != self.config.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        return ErrorCode.INVALID_REQUEST if partition is None else ErrorCode.NONE

    def _on_vote(self, request: VoteRequest, token: Token, now_ms: int) -> None:
        from headrace_broker.raft.nominees import Unattached

        partition = messages.only_partition(request.topics)
        error = self._refusal(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._vote_refusal(request, partition)
        if partition is None or error is not ErrorCode.NONE:
            self.reply(token, messages.vote_answer(error, self.leader_id, self.epoch))
            return
        candidate = partition.replica_id
        self.follow_epoch(partition.replica_epoch, NO_ONE, now_ms)
        up_to_date = (partition.last_offset_epoch, partition.last_offset) >= self.end[::-1]
        if partition.pre_vote:
            granted = up_to_date and self.role.grants_pre_vote
            if granted:
                self.role.on_pre_vote_granted(candidate, (partition.last_offset, partition.last_offset_epoch), now_ms)
        else:
            granted = self.state.voted_id == candidate or (
                up_to_date and self.state.voted_id == NO_ONE and self.leader_id == NO_ONE
            )
            if granted and self.state.voted_id != candidate:
                self.persist(replace(self.state, voted_id=candidate))
                self.become(Unattached(self, now_ms), now_ms)
        self.reply(token, messages.vote_answer(ErrorCode.NONE, self.leader_id, self.epoch, granted=granted))

    def _vote_refusal(self, request: VoteRequest, partition: Any) -> ErrorCode:
        if request.voter_id not in (NO_ONE, self.config.node_id):
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

    def _on_begin(self, request: BeginQuorumEpochRequest, token: Token, now_ms: int) -> None:
        error = self._follow_claim(request.cluster_id, messages.only_partition(request.topics), now_ms)
        self.reply(token, messages.begin_answer(error, self.leader_id, self.epoch))

    def _on_end(self, request: EndQuorumEpochRequest, token: Token, now_ms: int) -> None:
        partition = messages.only_partition(request.topics)
        error = self._follow_claim(request.cluster_id, partition, now_ms)
        if partition is not None and error is ErrorCode.NONE:
            self.role.on_leader_resigned(messages.successors_of(partition), now_ms)
        self.reply(token, messages.end_answer(error, self.leader_id, self.epoch))

    def _follow_claim(self, cluster_id: str | None, partition: Any, now_ms: int) -> ErrorCode:
        """Follow the node that claims to lead, or to have led, an epoch, or say what is wrong with its claim."""
        error = self._refusal(cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._claim_refusal(partition)
            if error is ErrorCode.NONE:
                self.follow_epoch(partition.leader_epoch, partition.leader_id, now_ms)
        return error

    def _claim_refusal(self, partition: Any) -> ErrorCode:
        """What is wrong with a node's claim to lead, or to have led, an epoch."""
        if partition.leader_id not in self.config.voters:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if not self._is_plausible(partition.leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if partition.leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.leader_epoch == self.epoch and self.leader_id not in (NO_ONE, partition.leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _is_plausible(self, epoch: int) -> bool:
        return 0 <= epoch <= min(self.epoch + EPOCH_LEAP_MAX, EPOCH_MAX)

    def _on_fetch(self, request: FetchRequest, token: Token, now_ms: int) -> None:
        partition = messages.only_partition(request.topics)
        error = self._refusal(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            is_valid = partition.fetch_offset >= 0 and partition.last_fetched_epoch >= 0
            error = self._leadership_refusal(partition.current_leader_epoch) if is_valid else ErrorCode.INVALID_REQUEST
        if partition is None or error is not ErrorCode.NONE:
            self.reply(token, messages.fetch_answer(error, self.leader_id, self.epoch))
            return
        self.role.on_fetch(request, partition, token, now_ms)

    def _on_fetch_snapshot(self, request: FetchSnapshotRequest, token: Token, now_ms: int) -> None:
        partition = messages.only_partition(request.topics)
        error = self._refusal(request.cluster_id, partition)
        if partition is not None and error is ErrorCode.NONE:
            error = self._leadership_refusal(partition.current_leader_epoch)
        if partition is None or error is not ErrorCode.NONE:
            self.reply(token, messages.snapshot_answer(error, self.leader_id, self.epoch))
            return
        self.role.on_fetch_snapshot(request, partition, token, now_ms)

    def _leadership_refusal(self, asked_epoch: int) -> ErrorCode:
        if asked_epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader_id != self.config.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.FENCED_LEADER_EPOCH if 0 <= asked_epoch < self.epoch else ErrorCode.NONE

    # -- for the roles ----------------------------------------------------------------------------------------------

    def follow_epoch(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Take up a higher epoch, or the leader of this one that was not known yet."""
        from headrace_broker.raft.follower import Follower
        from headrace_broker.raft.nominees import Unattached

        if (
            epoch > EPOCH_MAX
            or epoch < self.epoch
            or (epoch == self.epoch and (self.leader_id != NO_ONE or leader_id == NO_ONE))
        ):
            return
        if leader_id == self.config.node_id:
            leader_id = NO_ONE  # what this node led before it was restarted
            if epoch == self.epoch:
                return
        if epoch > self.epoch:
            self.persist(QuorumState(epoch, leader_id, NO_ONE, tuple(sorted(self.config.voters))))
        if leader_id == NO_ONE:
            self.become(Unattached(self, now_ms), now_ms)
        else:
            self.become(Follower(self, leader_id, now_ms), now_ms)

    def become(self, role: Role, now_ms: int) -> None:
        """Change roles, with what the old one owes to others."""
        self.role.leave(now_ms)
        self.role = role
        if self.state.leader_id != role.leader_id and role.leader_id != NO_ONE:
            self.persist(replace(self.state, leader_id=role.leader_id))
        role.enter(now_ms)
        told = (self.role.leader_id, self.epoch)
        if self.role is role and told != self._told:
            self._told = told
            self._effects.append(LeaderChanged(*told))

    def persist(self, state: QuorumState) -> None:
        """Have the state on disk before anything that follows."""
        if state != self.state:
            self.state = state
            self._effects.append(Persist(state))

    def send(self, node_id: int, request: Request[Any]) -> None:
        self._effects.append(Send(node_id, request))

    def reply(self, token: Token, response: Response) -> None:
        self._effects.append(Reply(token, response))

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def advance_high_watermark(self, offset: int) -> bool:
        """Commit up to `offset`; False when that is nothing new."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self._effects.append(HighWatermark(offset))
        return True

    def may_ask_ms(self, node_id: int, now_ms: int) -> int:
        """When to turn to a node again that has refused connections lately."""
        refused_ms = self._refused_ms.get(node_id)
        return now_ms if refused_ms is None else max(now_ms, refused_ms + self.config.refused_backoff_ms)

    def random_ms(self, bound_ms: int) -> int:
        """From [0, bound_ms)."""
        return int(self.rng.random() * bound_ms)

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
