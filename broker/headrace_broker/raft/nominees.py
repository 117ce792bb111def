"""The roles without a known leader: Unattached, Prospective (requests pre-votes) and Candidate (requests votes).

A pre-vote (KIP-996) does not change the epoch. So a voter that was disconnected from the other voters cannot disrupt a
quorum that has a leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import NO_NODE, QuorumState
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Unattached(Role):
    """The role without a known leader.

    A voter waits for the election timeout, and an observer sends fetches to voters.
    """

    grants_pre_vote = True

    def __init__(self, raft: Raft, now_ms: int, wait_ms: int | None = None) -> None:
        super().__init__(raft)
        config = raft.config
        if wait_ms is None:
            wait_ms = config.election_timeout_ms + raft.random_ms_below(config.election_timeout_ms)
        self._election_deadline_ms = now_ms + wait_ms
        self._next_fetch_ms = now_ms
        self._pending_request: Request[Any] | None = None

    def deadline_ms(self) -> int | None:
        if self.raft.config.is_voter:
            return self._election_deadline_ms
        return None if self._pending_request is not None else self._next_fetch_ms

    def tick(self, now_ms: int) -> None:
        raft = self.raft
        if raft.config.is_voter:
            if now_ms >= self._election_deadline_ms:
                raft.transition_to(Prospective(raft, now_ms), now_ms)
        elif self._pending_request is None and now_ms >= self._next_fetch_ms:
            voters = sorted(raft.config.voters)
            self._pending_request = messages.fetch_request(raft.config, raft.epoch, raft.log_end, raft.high_watermark)
            raft.send(voters[raft.random_ms_below(len(voters))], self._pending_request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if request is self._pending_request:
            self._pending_request = None
            self._next_fetch_ms = now_ms + self.raft.config.retry_backoff_ms * 5

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        if self.raft.config.is_voter:
            backoff_ms = successor_backoff_ms(self.raft, successors)
            self._election_deadline_ms = min(self._election_deadline_ms, now_ms + backoff_ms)


class _Nominee(Role):
    """Requests the vote of every other voter until a majority has decided or the election times out."""

    grants_pre_vote = True
    pre_vote: bool

    def __init__(self, raft: Raft, now_ms: int) -> None:
        super().__init__(raft)
        timeout_ms = raft.config.election_timeout_ms
        self._election_deadline_ms = now_ms + timeout_ms + raft.random_ms_below(timeout_ms)
        self._granted = {raft.config.node_id}
        self._rejected: set[int] = set()
        self._pending_requests: dict[int, Request[Any]] = {}
        self._retry_ms: dict[int, int] = {}

    def enter(self, now_ms: int) -> None:
        if not self._finish_if_decided(now_ms):
            self._send_vote_requests(now_ms)

    def deadline_ms(self) -> int | None:
        return min((self._election_deadline_ms, *self._retry_ms.values()))

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._election_deadline_ms:
            self.on_election_lost(now_ms)
            return
        for voter in [voter for voter, retry_ms in self._retry_ms.items() if retry_ms <= now_ms]:
            del self._retry_ms[voter]
        self._send_vote_requests(now_ms)

    def _send_vote_requests(self, now_ms: int) -> None:
        raft = self.raft
        skipped = self._granted | self._rejected | self._pending_requests.keys() | self._retry_ms.keys()
        for voter in sorted(raft.config.voters - skipped):
            request = messages.vote_request(raft.config, voter, raft.epoch, raft.log_end, pre_vote=self.pre_vote)
            self._pending_requests[voter] = request
            raft.send(voter, request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if self._pending_requests.get(node_id) is not request:
            return
        del self._pending_requests[node_id]
        if partition is None or partition.error_code != ErrorCode.NONE:
            self._retry_ms[node_id] = now_ms + self.raft.config.retry_backoff_ms
            return
        (self._granted if partition.vote_granted else self._rejected).add(node_id)
        self._finish_if_decided(now_ms)

    def on_connection_refused(self, node_id: int, now_ms: int) -> None:
        if node_id in self._pending_requests:
            # Count a dead voter as a rejected vote. Waiting for the vote would only delay the next election.
            self._rejected.add(node_id)
            self._finish_if_decided(now_ms)

    def _finish_if_decided(self, now_ms: int) -> bool:
        majority = self.raft.config.majority
        if len(self._granted) >= majority:
            self.on_election_won(now_ms)
        elif len(self._rejected) > len(self.raft.config.voters) - majority:
            self.on_election_lost(now_ms)
        else:
            return False
        return True

    def on_election_won(self, now_ms: int) -> None:
        """Change the role, because a majority of the voters granted the vote or the pre-vote."""
        raise NotImplementedError

    def on_election_lost(self, now_ms: int) -> None:
        """Become Unattached, because too many voters rejected the vote or the election timed out."""
        backoff_ms = 1 + self.raft.random_ms_below(self.raft.config.election_backoff_max_ms)
        self.raft.transition_to(Unattached(self.raft, now_ms, backoff_ms), now_ms)


class Prospective(_Nominee):
    """Requests pre-votes to find out whether this node would win an election. The epoch does not change."""

    pre_vote = True

    def on_election_won(self, now_ms: int) -> None:
        self.raft.transition_to(Candidate(self.raft, now_ms), now_ms)

    def on_pre_vote_granted(self, candidate: int, end: OffsetAndEpoch, now_ms: int) -> None:
        """Become Unattached if `candidate` has a more up-to-date log, or an equal log and a higher id than this node.

        `end` is the end of the candidate's log. If two nodes request pre-votes at the same time, only one of them
        starts an election, because the other node becomes Unattached.
        """
        if (*end[::-1], candidate) > (*self.raft.log_end[::-1], self.raft.config.node_id):
            self.raft.transition_to(Unattached(self.raft, now_ms), now_ms)


class Candidate(_Nominee):
    """Increments the epoch, votes for itself and requests the votes of the other voters."""

    pre_vote = False

    def enter(self, now_ms: int) -> None:
        raft = self.raft
        voters = tuple(sorted(raft.config.voters))
        raft.persist(QuorumState(raft.epoch + 1, NO_NODE, raft.config.node_id, voters))
        super().enter(now_ms)

    def on_election_won(self, now_ms: int) -> None:
        from headrace_broker.raft.leader import Leader

        self.raft.transition_to(Leader(self.raft, self._granted, now_ms), now_ms)


def successor_backoff_ms(raft: Raft, successors: list[int]) -> int:
    """Return how long this voter waits before it starts an election after the leader resigned.

    The first preferred successor does not wait. Each further successor waits longer than the previous one.
    """
    node_id = raft.config.node_id
    if successors and successors[0] == node_id:
        return 0
    index = successors.index(node_id) if node_id in successors else len(successors)
    return raft.config.retry_backoff_ms * (1 << min(index, 5)) + raft.random_ms_below(raft.config.retry_backoff_ms)
