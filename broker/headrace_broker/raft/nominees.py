"""Roles without a leader: waiting (Unattached), asking whether one would be elected (Prospective), and Candidate.

The pre-vote (KIP-996) changes no epoch, so a node that was cut off cannot disturb a quorum that works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import NO_ONE, QuorumState
from headrace_broker.raft.role import Role

if TYPE_CHECKING:
    from headrace_broker.raft.core import Raft


class Unattached(Role):
    """Knows no leader.  A voter waits for one, then asks whether it should become it; an observer looks for one."""

    grants_pre_vote = True

    def __init__(self, raft: Raft, now_ms: int, wait_ms: int | None = None) -> None:
        super().__init__(raft)
        config = raft.config
        if wait_ms is None:
            wait_ms = config.election_timeout_ms + raft.random_ms(config.election_timeout_ms)
        self._election_ms = now_ms + wait_ms
        self._ask_ms = now_ms
        self._asked: Request[Any] | None = None

    def deadline_ms(self) -> int | None:
        if self.raft.config.is_voter:
            return self._election_ms
        return None if self._asked is not None else self._ask_ms

    def tick(self, now_ms: int) -> None:
        raft = self.raft
        if raft.config.is_voter:
            if now_ms >= self._election_ms:
                raft.become(Prospective(raft, now_ms), now_ms)
        elif self._asked is None and now_ms >= self._ask_ms:
            voters = sorted(raft.config.voters)
            self._asked = messages.fetch_request(raft.config, raft.epoch, raft.end, raft.high_watermark)
            raft.send(voters[raft.random_ms(len(voters))], self._asked)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if request is self._asked:
            self._asked = None
            self._ask_ms = now_ms + self.raft.config.retry_backoff_ms * 5

    def on_leader_resigned(self, successors: list[int], now_ms: int) -> None:
        if self.raft.config.is_voter:
            self._election_ms = min(self._election_ms, now_ms + place_in_line(self.raft, successors))


class _Nominee(Role):
    """Asks every other voter, again and again, until a majority has decided or time is up."""

    grants_pre_vote = True
    pre_vote: bool

    def __init__(self, raft: Raft, now_ms: int) -> None:
        super().__init__(raft)
        config = raft.config
        self._end_ms = now_ms + config.election_timeout_ms + raft.random_ms(config.election_timeout_ms)
        self._granted = {config.node_id}
        self._rejected: set[int] = set()
        self._asked: dict[int, Request[Any]] = {}
        self._again_ms: dict[int, int] = {}

    def enter(self, now_ms: int) -> None:
        if not self._decided(now_ms):
            self._ask(now_ms)

    def deadline_ms(self) -> int | None:
        return min((self._end_ms, *self._again_ms.values()))

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._end_ms:
            self.lost(now_ms)
            return
        for voter in [voter for voter, again_ms in self._again_ms.items() if again_ms <= now_ms]:
            del self._again_ms[voter]
        self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        raft = self.raft
        answered = self._granted | self._rejected | self._asked.keys() | self._again_ms.keys()
        for voter in sorted(raft.config.voters - answered):
            request = messages.vote_request(raft.config, voter, raft.epoch, raft.end, pre_vote=self.pre_vote)
            self._asked[voter] = request
            raft.send(voter, request)

    def on_response(self, node_id: int, request: Request[Any], partition: Any | None, now_ms: int) -> None:
        if self._asked.get(node_id) is not request:
            return
        del self._asked[node_id]
        if partition is None or partition.error_code != ErrorCode.NONE:
            self._again_ms[node_id] = now_ms + self.raft.config.retry_backoff_ms
            return
        (self._granted if partition.vote_granted else self._rejected).add(node_id)
        self._decided(now_ms)

    def on_refused(self, node_id: int, now_ms: int) -> None:
        if node_id in self._asked:
            self._rejected.add(node_id)  # the dead do not vote; waiting for them would only delay the next attempt
            self._decided(now_ms)

    def _decided(self, now_ms: int) -> bool:
        majority = self.raft.config.majority
        if len(self._granted) >= majority:
            self.won(now_ms)
        elif len(self._rejected) > len(self.raft.config.voters) - majority:
            self.lost(now_ms)
        else:
            return False
        return True

    def won(self, now_ms: int) -> None:
        """A majority is for this node."""
        raise NotImplementedError

    def lost(self, now_ms: int) -> None:
        """A majority is against it, or nobody answered in time."""
        backoff_ms = 1 + self.raft.random_ms(self.raft.config.election_backoff_max_ms)
        self.raft.become(Unattached(self.raft, now_ms, backoff_ms), now_ms)


class Prospective(_Nominee):
    """Asks who would vote for it, were it to stand; the epoch stays."""

    pre_vote = True

    def won(self, now_ms: int) -> None:
        self.raft.become(Candidate(self.raft, now_ms), now_ms)

    def on_pre_vote_granted(self, candidate: int, end: OffsetAndEpoch, now_ms: int) -> None:
        """Of two that ask at the same time one stands back, else each would vote for itself."""
        if (*end[::-1], candidate) > (*self.raft.end[::-1], self.raft.config.node_id):
            self.raft.become(Unattached(self.raft, now_ms), now_ms)


class Candidate(_Nominee):
    """Stands for election in an epoch of its own, with its own vote."""

    pre_vote = False

    def enter(self, now_ms: int) -> None:
        raft = self.raft
        voters = tuple(sorted(raft.config.voters))
        raft.persist(QuorumState(raft.epoch + 1, NO_ONE, raft.config.node_id, voters))
        super().enter(now_ms)

    def won(self, now_ms: int) -> None:
        from headrace_broker.raft.leader import Leader

        self.raft.become(Leader(self.raft, self._granted, now_ms), now_ms)


def place_in_line(raft: Raft, successors: list[int]) -> int:
    """How long to wait before standing: the first named at once, the others behind it."""
    node_id = raft.config.node_id
    if successors and successors[0] == node_id:
        return 0
    place = successors.index(node_id) if node_id in successors else len(successors)
    return raft.config.retry_backoff_ms * (1 << min(place, 5)) + raft.random_ms(raft.config.retry_backoff_ms)
