"""Fetch sessions: a client that is told only what is new knows as much as one that is told everything."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessions, Key, SessionState

TOPIC = b"t" * 16

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 4)),
        st.tuples(st.just("commit"), st.integers(0, 4)),
        st.tuples(st.just("want"), st.integers(0, 4)),
        st.tuples(st.just("forget"), st.integers(0, 4)),
        st.tuples(st.just("fetch"), st.just(0)),
        st.tuples(st.just("nudge"), st.just(0)),
        st.tuples(st.just("lose the answer"), st.just(0)),
        st.tuples(st.just("evict"), st.just(0)),
    ),
    max_size=60,
)


class _World:
    """Five partitions whose ends and high watermarks only grow, one broker, one client."""

    def __init__(self) -> None:
        self.ends = [0] * 5
        self.high_watermarks = [0] * 5
        self.closed: list[FetchSession] = []
        self.sessions = FetchSessions(1000, Random(1), self.closed.append)
        self.client = SessionState()
        self.wanted: dict[int, int] = {}  # partition -> next offset
        self.known: dict[int, int] = {}  # partition -> high watermark as the client knows it
        self.unsaid: set[int] = set()
        self.gone: set[int] = set()

    def mark(self, index: int) -> None:
        for session in self.sessions._sessions.values():
            session.mark((TOPIC, index))

    def want(self, index: int) -> None:
        if index not in self.wanted:
            self.wanted[index] = 0
            self.unsaid.add(index)
            self.gone.discard(index)

    def forget(self, index: int) -> None:
        if self.wanted.pop(index, None) is not None:
            self.known.pop(index, None)
            self.unsaid.discard(index)
            self.gone.add(index)

    def begin_anew(self) -> None:
        self.client.reset()
        self.gone.clear()
        self.unsaid = set(self.wanted)

    def fetch(self, *, is_lost: bool, is_nudged: bool = False) -> None:
        request = FetchRequest()
        changed = [
            (index, TOPIC, FetchPartition(partition=index, fetch_offset=self.wanted[index], partition_max_bytes=1))
            for index in sorted(self.unsaid)
        ]
        self.client.fill(request, changed, sorted(self.gone))
        self.unsaid, self.gone = set(), set()
        try:
            session = self.sessions.find(request, -1, 0)
        except ApiError:  # the broker has forgotten the session
            self.begin_anew()
            return
        assert session is not None
        session.take(request)
        nudge = FetchRequest(max_bytes=1)
        if is_nudged and self.client.nudge(nudge):
            assert nudge.max_bytes == nudge.max_wait_ms == 0
            assert not nudge.topics
            assert self.sessions.find(nudge, -1, 0) is session
        answers = self.answers(session, is_full=request.session_epoch == 0)
        if is_lost:
            self.begin_anew()
            return
        self.client.answered(session.session_id)
        for answer in answers:
            index = answer.partition_index
            assert index in self.wanted
            self.known[index] = answer.high_watermark
            if answer.records:
                self.wanted[index] += len(answer.records)
                self.unsaid.add(index)

    def answers(self, session: FetchSession, *, is_full: bool) -> list[PartitionData]:
        _, untold = self.look(session, is_full=is_full)  # not enough to answer: the request waits
        for key, _ in untold:
            session.mark(key)
        found, told = self.look(session, is_full=is_full)
        for key, answer in told:
            session.told(key, answer)
        return found

    def look(
        self, session: FetchSession, *, is_full: bool
    ) -> tuple[list[PartitionData], list[tuple[Key, PartitionData]]]:
        found: list[PartitionData] = []
        told: list[tuple[Key, PartitionData]] = []
        for key in list(session.news):
            index, offset = key[1], session.wanted[key].partition.fetch_offset
            answer = PartitionData(
                partition_index=index,
                high_watermark=self.high_watermarks[index],
                log_start_offset=0,
                aborted_transactions=None,
                records=b"x" * min(2, self.ends[index] - offset),
            )
            session.looked_at(key, is_exhausted=not answer.records)
            if session.is_news(key, answer) or is_full:
                found.append(answer)
                told.append((key, answer))
        return found, told


@settings(deadline=None)
@given(steps)
def test_nothing_is_missed(moves: list[tuple[str, int]]) -> None:
    world = _World()
    for move, index in moves:
        if move == "append":
            world.ends[index] += 1
            world.mark(index)
        elif move == "commit":
            world.high_watermarks[index] = world.ends[index]
            world.mark(index)
        elif move == "want":
            world.want(index)
        elif move == "forget":
            world.forget(index)
        elif move == "evict":
            for session_id in list(world.sessions._sessions):
                world.sessions._close(session_id)
        else:
            world.fetch(is_lost=move == "lose the answer", is_nudged=move == "nudge")
    for _ in range(80):
        world.fetch(is_lost=False)
    for index, offset in world.wanted.items():
        assert offset == world.ends[index]
        assert world.known[index] == world.high_watermarks[index]


def test_replicas_take_the_place_of_clients_when_there_is_no_room() -> None:
    closed: list[FetchSession] = []
    sessions = FetchSessions(1, Random(1), closed.append)
    opening = FetchRequest(session_id=0, session_epoch=0)
    first = sessions.find(opening, -1, 0)
    assert sessions.find(opening, -1, 1) is None
    assert sessions.find(opening, 3, 1) is not None
    assert closed == [first]
    assert sessions.find(opening, 4, 1) is None
    assert sessions.find(opening, 4, 200_000) is not None  # the other one was idle for long


def test_an_epoch_out_of_turn_is_refused() -> None:
    sessions = FetchSessions(1, Random(1), lambda session: None)
    session = sessions.find(FetchRequest(session_id=0, session_epoch=0), -1, 0)
    assert session is not None

    def ask(epoch: int) -> FetchSession | None:
        return sessions.find(FetchRequest(session_id=session.session_id, session_epoch=epoch), -1, 0)

    with pytest.raises(ApiError, match="epoch of the fetch session"):
        ask(2)
    assert ask(1) is session
    with pytest.raises(ApiError, match="epoch of the fetch session"):
        ask(1)
