"""What a follower makes of its leader's answers."""

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
    high_watermark: int = 4
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0), (3, 6)])

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0]

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return LeaderEpochCache(self.epochs).end_offset_for(epoch, self.log_end_offset)


def answer(error: ErrorCode = ErrorCode.NONE, **fields: object) -> PartitionData:
    return PartitionData(partition_index=0, error_code=error, high_watermark=7, log_start_offset=2, **fields)


def diverging(epoch: int, end_offset: int) -> PartitionData:
    return answer(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))


def test_a_fetch_names_the_last_epoch_and_the_own_start() -> None:
    wanted = follower.next_fetch(3, Log(), 5, 1000)
    assert (wanted.partition, wanted.fetch_offset, wanted.last_fetched_epoch) == (3, 10, 3)
    assert (wanted.current_leader_epoch, wanted.log_start_offset) == (5, 0)


def test_records_are_appended_and_the_leaders_marks_taken() -> None:
    assert follower.judge(Log(), 10, answer()) == follower.Append(7, 2)


def records(*offsets: int) -> bytes:
    return b"".join(
        build_batch(RecordColumns(values=[b"v"], timestamps=1), base_offset=offset, partition_leader_epoch=2)
        for offset in offsets
    )


@pytest.mark.parametrize(
    ("verdict", "came", "expected"),
    [
        (follower.Append(7, 0), records(3, 4), (5, 2)),
        (follower.Append(7, 0), records(3, 4) + records(5)[:65], (5, 2)),
        (follower.Append(6, 0), records(5), None),
        (follower.Append(7, 0), records(3)[:65], None),
        (follower.Append(7, 0), b"x" * 70, None),
        (follower.Truncate(3), b"", None),
    ],
    ids=["all", "the last is cut", "in sync by it", "cut", "no batch", "no records"],
)
def test_only_what_is_below_the_leaders_high_watermark_is_asked_behind_before_it_is_written(
    verdict: follower.Verdict, came: bytes, expected: tuple[int, int] | None
) -> None:
    """R1: a fetch says that all before its offset is here, and the leader may count on it."""
    assert follower.end_ahead(verdict, came) == expected
    wanted = follower.next_fetch(0, Log(), 5, 1000, expected)
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (expected or (10, 3))


@pytest.mark.parametrize(
    ("epoch", "end_offset", "expected"),
    [
        (3, 8, 8),  # the leader's epoch 3 ends before ours
        (3, 20, 10),  # ours ends first: nothing to cut but what is not there
        (2, 5, 6),  # the leader has an epoch that we have not: back to the end of ours before it
        (1, 4, 4),
        (1, 9, 6),
    ],
)
def test_epochs_tell_where_to_cut(epoch: int, end_offset: int, expected: int) -> None:
    """R2: never the high watermark, which is 4 here and lags what is committed."""
    assert follower.judge(Log(), 10, diverging(epoch, end_offset)) == follower.Truncate(expected)


def test_an_answer_to_an_older_request_is_asked_anew() -> None:
    assert isinstance(follower.judge(Log(), 8, answer()), follower.Retry)


def test_a_fenced_epoch_waits_for_the_metadata_and_a_leader_that_lags_is_asked_again() -> None:
    assert follower.judge(Log(), 10, answer(ErrorCode.FENCED_LEADER_EPOCH)) == follower.Stop(
        ErrorCode.FENCED_LEADER_EPOCH
    )
    for error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR):
        assert isinstance(follower.judge(Log(), 10, answer(error)), follower.Retry)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 6, (6, False)),  # longer than the leader's log
        (20, 30, (20, True)),  # the leader has deleted what comes next
        (5, 30, (10, False)),
    ],
)
def test_out_of_range_goes_on_where_the_leader_has_something(start: int, end: int, expected: tuple[int, bool]) -> None:
    assert isinstance(follower.judge(Log(), 10, answer(ErrorCode.OFFSET_OUT_OF_RANGE)), follower.FindStart)
    assert follower.restart_at(Log(), start, end) == expected


def test_a_leader_that_ends_before_our_log_begins_is_copied_from_its_start() -> None:
    """Records were deleted here up to where the next leader, elected uncleanly, never was."""
    assert follower.restart_at(Log(log_start_offset=8), 1, 5) == (1, True)
