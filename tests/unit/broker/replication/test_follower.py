"""Tests of the follower's side of a partition: fetch requests and the handling of the leader's responses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import EpochEndOffset, PartitionData
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.replication import follower


@dataclass
class Log:
    log_end_offset: int = 10
    log_start_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0), (3, 6)])

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0]

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return LeaderEpochCache(self.epochs).end_offset_for(epoch, self.log_end_offset)


def partition_data(error: ErrorCode = ErrorCode.NONE, **fields: object) -> PartitionData:
    return PartitionData(partition_index=0, error_code=error, high_watermark=7, log_start_offset=2, **fields)


def diverging(epoch: int, end_offset: int) -> PartitionData:
    return partition_data(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))


def test_follower_fetch_request_contains_last_fetched_epoch_and_log_start_offset() -> None:
    request = follower.next_fetch(3, Log(), 5, 1000)
    assert (request.partition, request.fetch_offset, request.last_fetched_epoch) == (3, 10, 3)
    assert (request.current_leader_epoch, request.log_start_offset) == (5, 0)


def test_follower_action_for_a_fetch_response_contains_the_leaders_high_watermark_and_log_start_offset() -> None:
    assert follower.action_for(Log(), 10, partition_data()) == follower.Append(7, 2)


def records(*offsets: int) -> bytes:
    return b"".join(
        build_batch(RecordColumns(values=[b"v"], timestamps=1), base_offset=offset, partition_leader_epoch=2)
        for offset in offsets
    )


@pytest.mark.parametrize(
    ("action", "records_received", "expected"),
    [
        (follower.Append(7, 0), records(3, 4), (5, 2)),
        (follower.Append(7, 0), records(3, 4) + records(5)[:65], (5, 2)),
        (follower.Append(6, 0), records(5), None),
        (follower.Append(7, 0), records(3)[:65], None),
        (follower.Append(7, 0), b"x" * 70, None),
        (follower.Truncate(3), b"", None),
    ],
    ids=["all", "last batch truncated", "reaches high watermark", "truncated", "no batch", "no records"],
)
def test_follower_fetches_before_an_append_completes_only_if_the_fetch_offset_is_below_leaders_high_watermark(
    action: follower.FetchAction, records_received: bytes, expected: tuple[int, int] | None
) -> None:
    """Test rule R1 in docs/broker.md.

    A fetch request tells the leader that the follower has every record before the fetch offset. If the follower sends a
    request during an append, the records of the append may not be in its log yet, but the request's fetch offset is
    their end. This fetch offset must therefore be below the leader's high watermark, so that the records are committed.
    """
    assert follower.end_after_append(action, records_received) == expected
    request = follower.next_fetch(0, Log(), 5, 1000, expected)
    assert (request.fetch_offset, request.last_fetched_epoch) == (expected or (10, 3))


@pytest.mark.parametrize(
    ("epoch", "end_offset", "expected"),
    [
        (3, 8, 8),  # epoch 3 ends at 8 on the leader, at 10 on the follower
        (3, 20, 10),  # epoch 3 ends at 10 on the follower, so nothing is truncated
        (2, 5, 6),  # the follower has no epoch 2, so it truncates to the end of epoch 1
        (1, 4, 4),
        (1, 9, 6),
    ],
)
def test_follower_finds_the_truncation_offset_from_leader_epochs_and_not_from_its_high_watermark(
    epoch: int, end_offset: int, expected: int
) -> None:
    """Rule R2 in docs/broker.md: the leader's high watermark may be higher than the follower's high watermark.

    Therefore the log that the follower's decision is based on does not even have a high watermark.
    """
    assert follower.action_for(Log(), 10, diverging(epoch, end_offset)) == follower.Truncate(expected)


@pytest.mark.parametrize(
    ("epoch", "end_offset", "expected"),
    [
        (1, 8, 6),  # the leader has records of epoch 1 up to 8, but the follower's records from 6 on are of epoch 3
        (1, 4, 4),  # the leader's log for epoch 1 ends before the follower's log starts
    ],
)
def test_follower_removes_all_its_records_if_their_epochs_are_larger_than_the_diverging_epoch(
    epoch: int, end_offset: int, expected: int
) -> None:
    log = Log(log_start_offset=6, epochs=[(3, 6)])
    assert follower.action_for(log, 10, diverging(epoch, end_offset)) == follower.Truncate(expected)


@pytest.mark.parametrize(("end_offset", "expected"), [(8, 8), (20, 10)])
def test_follower_whose_epochs_are_smaller_than_the_diverging_epoch_truncates_to_its_end_on_the_leader(
    end_offset: int, expected: int
) -> None:
    """The follower removed an epoch without records, 5 for example, after it had sent this epoch to the leader."""
    assert follower.action_for(Log(), 10, diverging(4, end_offset)) == follower.Truncate(expected)


@pytest.mark.parametrize(("epoch", "end_offset"), [(-1, 8), (3, -1)])
def test_follower_ignores_an_incomplete_diverging_epoch_and_fetches_again(epoch: int, end_offset: int) -> None:
    """The response changes neither the log nor the high watermark."""
    assert isinstance(follower.action_for(Log(), 10, diverging(epoch, end_offset)), follower.Retry)


def test_follower_fetches_again_if_the_response_is_for_an_outdated_fetch_offset() -> None:
    assert isinstance(follower.action_for(Log(), 8, partition_data()), follower.Retry)


def test_follower_stops_fetching_after_error_fenced_leader_epoch_and_retries_after_other_errors() -> None:
    assert follower.action_for(Log(), 10, partition_data(ErrorCode.FENCED_LEADER_EPOCH)) == follower.Stop(
        ErrorCode.FENCED_LEADER_EPOCH
    )
    for error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR):
        assert isinstance(follower.action_for(Log(), 10, partition_data(error)), follower.Retry)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 6, (6, False)),  # the leader's log ends before the fetch offset
        (20, 30, (20, True)),  # the leader's log starts after the fetch offset
        (5, 30, (10, False)),
    ],
)
def test_follower_continues_at_an_offset_inside_the_leaders_log_after_error_offset_out_of_range(
    start: int, end: int, expected: tuple[int, bool]
) -> None:
    assert isinstance(
        follower.action_for(Log(), 10, partition_data(ErrorCode.OFFSET_OUT_OF_RANGE)), follower.ResetOffset
    )
    assert follower.reset_offset(Log(), start, end) == expected


def test_follower_log_is_replaced_if_leader_log_ends_before_follower_log_starts() -> None:
    """The log of an uncleanly elected leader may end before the offset up to which DeleteRecords deleted records."""
    assert follower.reset_offset(Log(log_start_offset=8), 1, 5) == (1, True)
