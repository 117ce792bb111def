"""The follower's side of a partition: what to ask the leader, and what its answer means for the own log.

Which records are the leader's is decided by epochs, never by offsets or high watermarks alone (KIP-101, KIP-279): the
follower names the epoch of its last record, and a leader whose log parts from it before that point says where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, PartitionData
from headrace_broker.records.batch import Buffer, CorruptBatchError, iter_batches


class FollowerLog(Protocol):
    """What is asked of the follower's log."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset), (-1, -1) if unknown."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the answer's records; then the leader's high watermark and log start offset hold here."""

    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to end at `offset`, and ask again."""

    offset: int


@dataclass(frozen=True, slots=True)
class FindStart:
    """The leader does not have the offset: ask where its log begins and ends, then `restart_at`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """This leader, or this epoch of it, is over: wait for the metadata log to tell who leads."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Retry:
    """Something passing: ask again after a pause."""

    error: ErrorCode


Verdict = Append | Truncate | FindStart | Stop | Retry


def next_fetch(
    index: int, log: FollowerLog, leader_epoch: int, size_bytes_max: int, end: tuple[int, int] | None = None
) -> FetchPartition:
    """What to ask the leader of that epoch, from the log's end or from the `end_ahead` of what is on its way there."""
    offset, epoch = end or (log.log_end_offset, log.latest_epoch)
    return FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        log_start_offset=log.log_start_offset,
        partition_max_bytes=size_bytes_max,
    )


def end_ahead(verdict: Verdict, records: Buffer) -> tuple[int, int] | None:
    """(offset, epoch) where the log will end once these records are written; None where that has to be waited for.

    A fetch says that everything before its offset is here.  Below the leader's high watermark that commits nothing,
    and makes nobody in sync; whoever keeps up is never below it.
    """
    if not isinstance(verdict, Append):
        return None
    try:
        batches = [header for _, header in iter_batches(records)]
    except CorruptBatchError:
        return None
    if not batches or batches[-1].next_offset >= verdict.high_watermark:
        return None
    return batches[-1].next_offset, batches[-1].partition_leader_epoch


def judge(log: FollowerLog, asked_offset: int, answer: PartitionData) -> Verdict:
    """What to do about the leader's answer to a fetch at `asked_offset`."""
    error = ErrorCode.of(answer.error_code)
    if error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return FindStart()
    if error is ErrorCode.FENCED_LEADER_EPOCH:
        return Stop(error)
    if error is not ErrorCode.NONE or asked_offset != log.log_end_offset:
        return Retry(error)
    if answer.diverging_epoch.epoch >= 0 or answer.diverging_epoch.end_offset >= 0:
        return Truncate(truncation_offset(log, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset))
    return Append(answer.high_watermark, answer.log_start_offset)


def truncation_offset(log: FollowerLog, leader_epoch: int, leader_end_offset: int) -> int:
    """Where to cut, given the leader's largest epoch that is not above ours, and where that ends.

    When our log has no such epoch, the largest one below it tells how far back the two may still agree.
    """
    if leader_epoch < 0:
        return log.high_watermark
    own_epoch, own_end_offset = log.end_offset_for_epoch(leader_epoch)
    if own_epoch < 0:
        return min(leader_end_offset, log.log_end_offset)
    if own_epoch == leader_epoch:
        return min(own_end_offset, leader_end_offset, log.log_end_offset)
    return min(own_end_offset, log.log_end_offset)


def restart_at(log: FollowerLog, leader_start_offset: int, leader_end_offset: int) -> tuple[int, bool]:
    """After an out of range answer: (offset to go on from, whether everything is dropped first).

    Where the leader ends before our log begins we have nothing of what it has, however much was deleted here.
    """
    if leader_end_offset < log.log_start_offset:
        return leader_start_offset, True
    if leader_end_offset < log.log_end_offset:
        return leader_end_offset, False
    return max(leader_start_offset, log.log_end_offset), leader_start_offset > log.log_end_offset
