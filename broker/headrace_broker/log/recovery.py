"""Recovers a log after an unclean shutdown.

Recovery checks the size, magic, CRC and offsets of every batch after the recovery point. It rebuilds indexes, leader
epochs and producer state from the valid batches. It truncates the segment at the first invalid batch, and renames the
later segments to `.deleted`. Recovery keeps a leader epoch whose start offset is in a gap between two batches, because
compaction may have removed the first records of this epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headrace_broker.log.config import LogConfig
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.producer_files import (
    load_producers,
    load_producers_at,
    remove_snapshots_after,
    remove_stray_snapshots,
    replay_producer,
)
from headrace_broker.log.producer_state import ProducerStateManager
from headrace_broker.log.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, SNAPSHOT_SUFFIX, LogSegment, file_name
from headrace_broker.log.storage import Storage
from headrace_broker.records.batch import BatchHeader, CorruptBatchError, IncompleteBatchError

_log = logging.getLogger(__name__)
OFFSETS_MAX = RELATIVE_OFFSET_MAX + 1
"""Maximum number of offsets in a segment: relative offsets have 31 bits."""


def recover(
    storage: Storage,
    directory: str,
    segments: list[LogSegment],
    epochs: LeaderEpochCache,
    config: LogConfig,
    recovery_point: int,
    *,
    cleaner_offset: int,
    may_have_gaps: bool,
) -> tuple[int, ProducerStateManager]:
    """Recover the segments from the recovery point on. Return (log end offset, producer state).

    If offsets are missing between two segments at or after `cleaner_offset`, a power failure has lost the end of the
    first segment but not the second segment. If `may_have_gaps` is False, the log is truncated at this gap. A follower
    then fetches the lost records again.

    To load the producer state, this function may read segments before the recovery point. If one of these segments is
    corrupt and `may_have_gaps` is False, the function recovers all segments and truncates the log at the corrupt batch.
    If `may_have_gaps` is True, it keeps these segments and starts with an empty producer state.

    Callers set `may_have_gaps` to True for the log of a partition's only replica. No other replica has the records that
    a truncation would remove.
    """
    first = max((index for index, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    remove_snapshots_after(storage, directory, segments[first].base_offset)
    try:
        producers = _producers_before(storage, directory, segments, first)
    except CorruptBatchError as error:
        if not may_have_gaps:
            _log.error(
                "Log %s: recovering all segments, because a segment before the recovery point is corrupt: %s",
                directory,
                error,
            )
            return recover(
                storage, directory, segments, epochs, config, 0, cleaner_offset=cleaner_offset, may_have_gaps=False
            )
        _log.error(
            "Log %s: the producer state before offset %d is lost: %s", directory, segments[first].base_offset, error
        )
        producers = ProducerStateManager()
        producers.clear(segments[first].base_offset)
    end_offset = segments[first].base_offset
    known_epochs = epochs.entries
    epochs.truncate_from_end(end_offset)  # `_EpochRebuilder` rebuilds the later leader epochs from the records
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first and segment.base_offset < end_offset:
            _log.error(
                "Deleting segment %s: it overlaps the previous segment, which ends at offset %d",
                segment.path(LOG_SUFFIX),
                end_offset,
            )
            drop_segments_from(segments, index)
            break
        if index > first and segment.base_offset > max(end_offset, cleaner_offset):
            _log.error(
                "Log %s: offsets %d to %d are missing between two segments",
                directory,
                end_offset,
                segment.base_offset - 1,
            )
            if not may_have_gaps:
                drop_segments_from(segments, index)
                break
        is_last = index + 1 == len(segments)
        limit = segment.base_offset + OFFSETS_MAX if is_last else segments[index + 1].base_offset
        epoch_rebuilder = _EpochRebuilder(known_epochs, epochs, end_offset)
        drop_following = partial(drop_segments_from, segments, index + 1)
        end_offset, is_complete = _recover_segment(
            segment, producers, epoch_rebuilder, config, limit, drop_following, is_last=is_last
        )
        if not is_complete:
            break
    producers.end_offset = end_offset
    if end_offset > segments[0].base_offset:
        try:
            storage.write(f"{directory}/{file_name(end_offset, SNAPSHOT_SUFFIX)}", producers.encode_snapshot())
        except OSError as error:
            _log.warning(
                "Log %s: cannot write a producer snapshot, continuing without it: %s",
                directory,
                error.strerror or error,
            )
    remove_stray_snapshots(storage, directory, segments)
    return end_offset, producers


def _producers_before(storage: Storage, directory: str, segments: list[LogSegment], first: int) -> ProducerStateManager:
    """Return the producer state at the base offset of `segments[first]`. Raises CorruptBatchError."""
    if first:
        return load_producers(storage, directory, segments[:first], segments[first].base_offset)
    return load_producers_at(storage, directory, segments[0].base_offset)


class _EpochRebuilder:
    """Rebuilds the leader epochs from the batches.

    `known` contains the leader epochs before the recovery. An entry of `known` is kept if its start offset is in a gap
    between two batches.
    """

    def __init__(self, known: Sequence[tuple[int, int]], epochs: LeaderEpochCache, end_offset: int) -> None:
        self._known = known
        self._epochs = epochs
        self._end_offset = end_offset

    def add(self, header: BatchHeader) -> None:
        """Add the leader epoch of the next batch, which begins at the current end offset or after a gap."""
        epochs, epoch, base_offset = self._epochs, header.partition_leader_epoch, header.base_offset
        if epoch != epochs.latest_epoch and base_offset > self._end_offset:
            for known_epoch, start_offset in self._known:
                if self._end_offset <= start_offset <= base_offset and epochs.latest_epoch < known_epoch <= epoch:
                    epochs.assign(known_epoch, start_offset)
        epochs.assign(epoch, base_offset)
        self._end_offset = header.next_offset


def drop_segments_from(segments: list[LogSegment], index: int) -> None:
    """Add the suffix `.deleted` to the files of `segments[index:]`, and remove these segments from the list.

    The files of the last segment are renamed first, so that a crash between two renames leaves no gap in the log.
    """
    for segment in reversed(segments[index:]):
        _log.error("Deleting segment %s: records before this segment are corrupt or missing", segment.path(LOG_SUFFIX))
        segment.mark_deleted()
    del segments[index:]


def _recover_segment(
    segment: LogSegment,
    producers: ProducerStateManager,
    epochs: _EpochRebuilder,
    config: LogConfig,
    limit: int,
    drop_following: Callable[[], None],
    *,
    is_last: bool,
) -> tuple[int, bool]:
    """Check every batch of a segment and rebuild its indexes.

    All offsets in the segment must be below `limit`, for example the base offset of the next segment. Returns (offset
    after the last valid batch, whether all batches are valid). If a batch is invalid, `drop_following` drops the later
    segments before this segment is truncated. If the broker crashes between the two steps, the next start finds the
    invalid batch again. If `is_last` is set, an incomplete last batch is logged as a warning and not as an error.
    """
    segment.reset_indexes()
    next_offset = segment.base_offset
    valid_bytes = 0
    try:
        for position, header in _checked_batches(segment, next_offset, limit, producers):
            segment.track_batch(header, position, config.index_interval_bytes)
            epochs.add(header)
            next_offset = header.next_offset
            valid_bytes = position + header.size_bytes
    except CorruptBatchError as error:
        is_unwritten = segment.is_unwritten_from(valid_bytes)
        if not is_unwritten:
            # A crash during a write leaves an incomplete last batch. Losing this batch is not an error, because the
            # leader has not acknowledged it.
            is_interrupted_write = is_last and isinstance(error, IncompleteBatchError)
            _log.log(
                logging.WARNING if is_interrupted_write else logging.ERROR,
                "Truncating segment %s to %d bytes (log end offset %d), the last %d bytes are lost: %s",
                segment.path(LOG_SUFFIX),
                valid_bytes,
                next_offset,
                segment.size_bytes - valid_bytes,
                error.reason,
            )
        is_complete = is_unwritten and next_offset == limit
        if not is_complete:
            drop_following()
        segment.truncate(valid_bytes)
        _write_indexes(segment)
        return next_offset, is_complete
    _write_indexes(segment)
    return next_offset, True


def _checked_batches(
    segment: LogSegment, next_offset: int, limit: int, producers: ProducerStateManager
) -> Iterator[tuple[int, BatchHeader]]:
    """Check each batch, update the producer state, and yield (position, header).

    The offsets of the batches must increase, and must be at least `next_offset` and below `limit`. Raises
    CorruptBatchError.
    """
    for position, header, batch in segment.iter_checked_batches(0):
        if not next_offset <= header.base_offset <= header.last_offset < limit:
            reason = (
                f"the batch has offsets {header.base_offset} to {header.last_offset}, expected offsets between "
                f"{next_offset} "
                f"and {limit - 1}"
            )
            raise CorruptBatchError(position, reason)
        next_offset = header.next_offset
        if header.producer_id >= 0:
            replay_producer(producers, header, batch)
        yield position, header


def _write_indexes(segment: LogSegment) -> None:
    """Write the index files.

    An error is only logged, so that a broker with a full disk can start and delete old segments.
    """
    try:
        segment.finish()
    except OSError as error:
        _log.warning(
            "Segment %s: cannot write the indexes, keeping them in memory: %s",
            segment.path(LOG_SUFFIX),
            error.strerror or error,
        )
