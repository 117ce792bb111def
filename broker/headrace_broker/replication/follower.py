"""A follower's replication logic: builds fetch requests, and decides how to act on the leader's responses.

The leader uses leader epochs to detect that a follower's log diverges, because offsets and high watermarks are not
sufficient (KIP-101, KIP-279). The follower sends the epoch of its last record. If the logs diverge before this record,
the leader responds with the diverging epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, PartitionData
from headrace_broker.records.batch import Buffer, CorruptBatchError, iter_batches


class FollowerLog(Protocol):
    """The interface through which a follower accesses a partition's log."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest known epoch <= `epoch`, its end offset).

        If all known epochs are larger, return (`epoch`, the start offset of the first known epoch). If all known epochs
        are smaller, or none is known, return (-1, -1).
        """


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, then update the high watermark and the log start offset to the leader's values."""

    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `offset` and fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """Request the leader's offset range and call `reset_offset`.

    This is the action if the fetch offset is outside the leader's log.
    """


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop fetching until the metadata log contains the new leader, because the leader epoch has ended."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Retry:
    """Fetch again after a backoff, because the fetch failed with a retriable error."""

    error: ErrorCode


FetchAction = Append | Truncate | ResetOffset | Stop | Retry


def next_fetch(
    index: int, log: FollowerLog, leader_epoch: int, size_bytes_max: int, end: tuple[int, int] | None = None
) -> FetchPartition:
    """Build the partition's entry in a fetch request to the leader of `leader_epoch`.

    The fetch offset is the log end offset. While an append is in progress, `end` (from `end_after_append`) is used
    instead.
    """
    offset, epoch = end or (log.log_end_offset, log.latest_epoch)
    return FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        log_start_offset=log.log_start_offset,
        partition_max_bytes=size_bytes_max,
    )


def end_after_append(action: FetchAction, records: Buffer) -> tuple[int, int] | None:
    """Return (offset, epoch) of the log end after the append, or None if the next fetch must wait for the append.

    A fetch tells the leader that the follower has every record before the fetch offset. A fetch below the leader's high
    watermark commits no record and does not let the follower join the ISR, so the follower may send it before the
    append completes. Any other fetch must wait. A follower in the ISR is never below the high watermark, so it always
    waits.
    """
    if not isinstance(action, Append):
        return None
    try:
        batches = [header for _, header in iter_batches(records)]
    except CorruptBatchError:
        return None
    if not batches or batches[-1].next_offset >= action.high_watermark:
        return None
    return batches[-1].next_offset, batches[-1].partition_leader_epoch


def action_for(log: FollowerLog, fetch_offset: int, data: PartitionData) -> FetchAction:
    """Return the action that follows from `data`, the leader's response to a fetch at `fetch_offset`."""
    error = ErrorCode.from_code(data.error_code)
    if error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return ResetOffset()
    if error is ErrorCode.FENCED_LEADER_EPOCH:
        return Stop(error)
    if error is not ErrorCode.NONE or fetch_offset != log.log_end_offset:
        return Retry(error)
    epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
    if epoch < 0 and end_offset < 0:
        return Append(data.high_watermark, data.log_start_offset)
    if epoch < 0 or end_offset < 0:
        return Retry(error)  # not a valid diverging epoch, so it must change neither log nor high watermark
    return Truncate(truncation_offset(log, epoch, end_offset))


def truncation_offset(log: FollowerLog, leader_epoch: int, leader_end_offset: int) -> int:
    """Return the offset to which the follower must truncate its log.

    `leader_epoch` and `leader_end_offset` are the diverging epoch E and its end offset in the leader's log. The
    follower has sent the epoch L of its last record. The leader knows E, but has no record of an epoch that is larger
    than E and at most L. From `leader_end_offset` on, the leader's records have epochs larger than L.

    Why no committed record is removed: the leader has all committed records (except after an unclean leader election),
    and this function removes no record that the leader has. The leader has a record only if its own record at the same
    offset has the same epoch.

    - If the follower has epoch E, the result is the smaller of the two end offsets of E. After its own end offset of E,
      the follower has epochs between E and L, and the leader has no such records. From the leader's end offset on, the
      leader has only epochs larger than L, and the follower has no such records.
    - If the follower has smaller and larger epochs than E, the result is the end offset of its next smaller epoch. All
      later records of the follower have epochs between E and L.
    - If the follower has only larger epochs, all its records have epochs between E and L, and all are removed:
      `end_offset_for_epoch` returns the start offset of the first epoch.
    - If the follower has only smaller epochs, it has removed an epoch without records since it sent L. From the
      leader's end offset on, the epochs differ, as in the first case.

    The follower's high watermark is not used. It may be lower than the leader's high watermark, so a truncation to it
    could remove committed records (rule R2 in docs/broker.md).

    Why the logs converge: after a truncation, the follower fetches again with the epoch of its new last record, and may
    have to truncate its log again. Each truncation removes a record, or an epoch without records at the end of the log,
    so the truncations end. The last remaining record of the follower then has the same epoch as the leader's record at
    this offset. One leader has written all records of this epoch, and followers copy records in order. Therefore the
    two logs are equal up to this record.
    """
    local_epoch, local_end_offset = log.end_offset_for_epoch(leader_epoch)
    if local_epoch < 0:
        return min(leader_end_offset, log.log_end_offset)
    if local_epoch < leader_epoch:
        return min(local_end_offset, log.log_end_offset)
    return min(local_end_offset, leader_end_offset, log.log_end_offset)


def reset_offset(log: FollowerLog, leader_start_offset: int, leader_end_offset: int) -> tuple[int, bool]:
    """After OFFSET_OUT_OF_RANGE, return (next fetch offset, whether to delete the whole local log first).

    The local log must be deleted if it has no offset in common with the leader's log.
    """
    if leader_end_offset < log.log_start_offset:
        return leader_start_offset, True
    if leader_end_offset < log.log_end_offset:
        return leader_end_offset, False
    return max(leader_start_offset, log.log_end_offset), leader_start_offset > log.log_end_offset
