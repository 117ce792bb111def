"""Property tests of fetch sessions: an incremental fetch session delivers the same data as full fetches."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessionCache, FetchSessionHandler, Key

TOPIC = b"t" * 16

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 4)),
        st.tuples(st.just("commit"), st.integers(0, 4)),
        st.tuples(st.just("add"), st.integers(0, 4)),
        st.tuples(st.just("forget"), st.integers(0, 4)),
        st.tuples(st.just("fetch"), st.just(0)),
        st.tuples(st.just("wake_up"), st.just(0)),
        st.tuples(st.just("lose the response"), st.just(0)),
        st.tuples(st.just("evict"), st.just(0)),
    ),
    max_size=60,
)


class _SimulatedFetches:
    """A client's fetch session on a broker with five partitions.

    The log end offsets and high watermarks of the partitions never decrease.
    """

    def __init__(self) -> None:
        self.ends = [0] * 5
        self.high_watermarks = [0] * 5
        self.closed: list[FetchSession] = []
        self.sessions = FetchSessionCache(1000, Random(1), self.closed.append)
        self.client = FetchSessionHandler()
        self.offsets: dict[int, int] = {}  # partition -> next fetch offset
        self.known: dict[int, int] = {}  # partition -> last high watermark that the client received
        self.changed: set[int] = set()
        self.removed: set[int] = set()

    def mark(self, index: int) -> None:
        for session in self.sessions._sessions.values():
            session.mark_dirty((TOPIC, index))

    def add(self, index: int) -> None:
        if index not in self.offsets:
            self.offsets[index] = 0
            self.changed.add(index)
            self.removed.discard(index)

    def forget(self, index: int) -> None:
        if self.offsets.pop(index, None) is not None:
            self.changed.discard(index)
            self.removed.add(index)

    def restart_session(self) -> None:
        self.client.reset()
        self.removed.clear()
        self.changed = set(self.offsets)

    def fetch(self, *, is_lost: bool, with_wake_up: bool = False) -> None:
        request = FetchRequest()
        changed = [
            (index, TOPIC, FetchPartition(partition=index, fetch_offset=self.offsets[index], partition_max_bytes=1))
            for index in sorted(self.changed)
        ]
        self.client.fill(request, changed, sorted(self.removed))
        for index in self.removed:  # unlike a partition that was added again before the broker forgot it
            self.known.pop(index, None)
        self.changed, self.removed = set(), set()
        try:
            session = self.sessions.get_or_create(request, -1, 0)
        except ApiError:  # the broker has evicted the session
            self.restart_session()
            return
        assert session is not None
        session.update(request)
        wake_up = FetchRequest(max_bytes=1)
        if with_wake_up and self.client.fill_wake_up(wake_up):
            assert wake_up.max_bytes == wake_up.max_wait_ms == 0
            assert not wake_up.topics
            assert self.sessions.get_or_create(wake_up, -1, 0) is session
        response = self.respond(session, is_full=request.session_epoch == 0)
        if is_lost:
            self.restart_session()
            return
        self.client.on_response(session.session_id)
        for data in response:
            index = data.partition_index
            assert index in self.offsets
            self.known[index] = data.high_watermark
            if data.records:
                self.offsets[index] += len(data.records)
                self.changed.add(index)

    def respond(self, session: FetchSession, *, is_full: bool) -> list[PartitionData]:
        _, unsent = self.read_dirty(session, is_full=is_full)  # the broker delays the fetch after this first read
        for key, _ in unsent:
            session.mark_dirty(key)
        partitions, sent = self.read_dirty(session, is_full=is_full)
        for key, data in sent:
            session.mark_sent(key, data)
        return partitions

    def read_dirty(
        self, session: FetchSession, *, is_full: bool
    ) -> tuple[list[PartitionData], list[tuple[Key, PartitionData]]]:
        partitions: list[PartitionData] = []
        sent: list[tuple[Key, PartitionData]] = []
        for key in list(session.dirty_partitions):
            index, offset = key[1], session.partitions[key].partition.fetch_offset
            data = PartitionData(
                partition_index=index,
                high_watermark=self.high_watermarks[index],
                log_start_offset=0,
                aborted_transactions=None,
                records=b"x" * min(2, self.ends[index] - offset),
            )
            session.mark_read(key, is_exhausted=not data.records)
            if session.has_changed(key, data) or is_full:
                partitions.append(data)
                sent.append((key, data))
        return partitions, sent


@settings(deadline=None)
@given(steps)
@example([("add", 0), ("fetch", 0), ("forget", 0), ("add", 0)])
def test_incremental_fetch_session_delivers_all_records_and_high_watermarks(moves: list[tuple[str, int]]) -> None:
    fetches = _SimulatedFetches()
    for move, index in moves:
        if move == "append":
            fetches.ends[index] += 1
            fetches.mark(index)
        elif move == "commit":
            fetches.high_watermarks[index] = fetches.ends[index]
            fetches.mark(index)
        elif move == "add":
            fetches.add(index)
        elif move == "forget":
            fetches.forget(index)
        elif move == "evict":
            for session_id in list(fetches.sessions._sessions):
                fetches.sessions._close(session_id)
        else:
            fetches.fetch(is_lost=move == "lose the response", with_wake_up=move == "wake_up")
    for _ in range(80):
        fetches.fetch(is_lost=False)
    for index, offset in fetches.offsets.items():
        assert offset == fetches.ends[index]
        assert fetches.known[index] == fetches.high_watermarks[index]


def test_new_fetch_session_of_a_replica_evicts_a_consumer_session_from_a_full_cache() -> None:
    closed: list[FetchSession] = []
    sessions = FetchSessionCache(1, Random(1), closed.append)
    opening = FetchRequest(session_id=0, session_epoch=0)
    first = sessions.get_or_create(opening, -1, 0)
    assert sessions.get_or_create(opening, -1, 1) is None
    assert sessions.get_or_create(opening, 3, 1) is not None
    assert closed == [first]
    assert sessions.get_or_create(opening, 4, 1) is None
    assert sessions.get_or_create(opening, 4, 200_000) is not None  # replica 3 has been idle for 200 s


def test_fetch_with_an_unexpected_session_epoch_is_rejected() -> None:
    sessions = FetchSessionCache(1, Random(1), lambda session: None)
    session = sessions.get_or_create(FetchRequest(session_id=0, session_epoch=0), -1, 0)
    assert session is not None

    def fetch_with_epoch(epoch: int) -> FetchSession | None:
        return sessions.get_or_create(FetchRequest(session_id=session.session_id, session_epoch=epoch), -1, 0)

    with pytest.raises(ApiError, match="fetch session epoch"):
        fetch_with_epoch(2)
    assert fetch_with_epoch(1) is session
    with pytest.raises(ApiError, match="fetch session epoch"):
        fetch_with_epoch(1)
