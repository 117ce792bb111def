"""Property tests of the follower's truncation: it removes no committed record, and the logs then agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import PartitionData
from headrace_broker.replication import follower
from headrace_broker.server.handlers.fetch import _diverging

REPLICAS = 3
counts = st.integers(0, 3)
replicas = st.integers(0, REPLICAS - 1)
terms = st.lists(
    st.tuples(
        replicas.map(lambda index: ("elect", index)),
        st.lists(
            st.one_of(
                st.tuples(st.just("append"), counts),
                st.tuples(st.just("fetch"), replicas, counts),
                st.tuples(st.just("delete records"), replicas, counts),
            ),
            max_size=6,
        ),
    ),
    max_size=8,
)


@dataclass
class Replica:
    """One replica's log. `records[offset]` is the leader epoch of the record; it identifies the record."""

    records: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def append(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.log_end_offset)
        self.records.append(epoch)

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.log_start_offset = min(self.log_start_offset, offset)
        self.epochs.truncate_from_end(offset)

    def is_prefix_of(self, records: list[int], log_start_offset: int = 0) -> bool:
        """Whether the remaining records of this log are also in `records`, from `log_start_offset` on."""
        start = max(self.log_start_offset, log_start_offset)
        return self.records[start:] == records[start : max(start, self.log_end_offset)]

    def has(self, records: list[int]) -> bool:
        """Whether this log has all `records`, unless it has deleted them."""
        start, end = self.log_start_offset, len(records)
        return self.log_end_offset >= end and self.records[start:end] == records[start:]

    def delete_records_before(self, offset: int) -> None:
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)


class Partition:
    """A partition with three replicas. A record is committed when two replicas have it.

    Only a replica with all committed records becomes the leader.
    """

    def __init__(self) -> None:
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.committed: list[int] = []
        self.epoch = 0
        self.leader = self.replicas[0]
        self.end_offsets: dict[int, int] = {}
        """The log end offsets of the followers that have fetched in this epoch."""

    def elect(self, index: int) -> None:
        candidates = [replica for replica in self.replicas if replica.has(self.committed)]
        self.leader = candidates[index % len(candidates)]
        self.epoch += 1
        self.end_offsets.clear()
        if self.leader.log_end_offset:
            self.leader.epochs.assign(self.epoch, self.leader.log_end_offset)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.leader.append(self.epoch)

    def fetch(self, index: int, count: int) -> None:
        replica, leader = self.replicas[index], self.leader
        if replica is leader:
            return
        self.truncate_until_logs_agree(replica)
        for epoch in leader.records[replica.log_end_offset : replica.log_end_offset + count]:
            replica.append(epoch)
        if leader.log_start_offset > replica.log_start_offset:
            replica.delete_records_before(min(leader.log_start_offset, replica.log_end_offset))
        self.end_offsets[index] = replica.log_end_offset
        if max(self.end_offsets.values()) > len(self.committed):
            self.committed = leader.records[: max(self.end_offsets.values())]

    def truncate_until_logs_agree(self, replica: Replica) -> None:
        leader = self.leader
        while True:
            data = self.response(replica)
            action = follower.action_for(replica, replica.log_end_offset, data)
            before = replica.log_end_offset, replica.latest_epoch
            if isinstance(action, follower.Append):
                break
            if isinstance(action, follower.ResetOffset):
                self.reset_offset(replica)
            else:
                assert isinstance(action, follower.Truncate)
                start = max(action.offset, leader.log_start_offset, replica.log_start_offset)
                removed, present = replica.records[start:], leader.records[start:]
                assert not any(old == new for old, new in zip(removed, present, strict=False))
                replica.truncate_to(action.offset)
                assert (replica.log_end_offset, replica.latest_epoch) < before
        assert replica.is_prefix_of(leader.records, leader.log_start_offset)

    def response(self, replica: Replica) -> PartitionData:
        """Return the leader's response to the follower's next fetch, without records."""
        data, log = PartitionData(partition_index=0), self.leader
        wanted = follower.next_fetch(0, replica, self.epoch, 1)
        try:
            data.diverging_epoch = _diverging(cast(Any, SimpleNamespace(log=log)), wanted) or data.diverging_epoch
        except ApiError as error:
            data.error_code = error.code
        if data.diverging_epoch.epoch < 0 and not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return data

    def reset_offset(self, replica: Replica) -> None:
        leader = self.leader
        offset, drops_all = follower.reset_offset(replica, leader.log_start_offset, leader.log_end_offset)
        replica.truncate_to(offset)
        if drops_all:
            replica.records = leader.records[:offset]
            replica.log_start_offset = offset

    def delete_records(self, index: int, count: int) -> None:
        replica = self.replicas[index]
        end_offset = min(len(self.committed), replica.log_end_offset)
        offset = min(replica.log_start_offset + count, end_offset)
        if offset > replica.log_start_offset:
            replica.delete_records_before(offset)


@settings(deadline=None, max_examples=300)
@given(terms)
@example(  # replica 2 has only records of epoch 2, and the leader has no record of this epoch
    [
        (("elect", 0), [("append", 2), ("fetch", 1, 2), ("fetch", 2, 2)]),
        (("elect", 2), [("append", 3), ("delete records", 2, 2)]),
        (("elect", 0), [("append", 3), ("fetch", 2, 3)]),
    ]
)
@example(  # two truncations: the leader lacks epochs 2 and 4, and replica 2 lacks epoch 3
    [
        (("elect", 0), [("append", 1), ("fetch", 1, 1), ("fetch", 2, 1)]),
        (("elect", 2), [("append", 3)]),
        (("elect", 0), [("append", 2)]),
        (("elect", 2), [("append", 3)]),
        (("elect", 0), [("append", 1), ("fetch", 2, 3)]),
    ]
)
@example(  # replica 2 has records that the leader, which was reset to a later log start offset, has deleted
    [
        (("elect", 1), [("append", 1), ("fetch", 0, 1)]),
        (("elect", 1), [("append", 1), ("fetch", 2, 2), ("delete records", 1, 2), ("fetch", 0, 0)]),
        (("elect", 0), []),
    ]
)
@example(  # replica 0 has deleted all records, and its latest epoch has none
    [
        (("elect", 1), [("append", 1), ("fetch", 2, 1)]),
        (("elect", 0), [("append", 1), ("fetch", 0, 2)]),
        (("elect", 0), [("delete records", 0, 2), ("fetch", 2, 0)]),
        (("elect", 1), []),
    ]
)
def test_follower_truncates_its_log_to_a_prefix_of_the_leaders_log_without_removing_committed_records(
    history: list[tuple[tuple[str, int], list[tuple[Any, ...]]]],
) -> None:
    """Rule R2 in docs/broker.md."""
    partition = Partition()
    moves = {"append": partition.append, "fetch": partition.fetch, "delete records": partition.delete_records}
    for (_, leader), changes in history:
        partition.elect(leader)
        for name, *arguments in changes:
            moves[name](*arguments)
        assert sum(replica.has(partition.committed) for replica in partition.replicas) >= 2
    for index in range(REPLICAS):
        partition.fetch(index, partition.leader.log_end_offset)
        assert partition.replicas[index].log_end_offset == partition.leader.log_end_offset
        assert partition.replicas[index].is_prefix_of(partition.leader.records)
