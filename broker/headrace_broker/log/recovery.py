"""Check the segments that a stop in mid-flight may have torn, and keep what is sound.

Every batch is checked (size, magic, CRC, rising offsets); indexes, leader epochs and producer state are rebuilt from
them. The file is cut where the first bad batch begins, and the segments behind it are set aside under `.deleted` names.
Where compaction has left a gap, the epochs that the log's file has there stand: their first records may be gone.
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
from headrace_broker.log.producer_state import ProducerState
from headrace_broker.log.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, SNAPSHOT_SUFFIX, LogSegment, file_name
from headrace_broker.log.storage import Storage
from headrace_broker.records.batch import BatchHeader, CorruptBatchError

_log = logging.getLogger(__name__)
OFFSETS_MAX = RELATIVE_OFFSET_MAX + 1
"""A segment's offsets, relative to its base, fit into 31 bits."""


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
) -> tuple[int, ProducerState]:
    """Check the segments from the recovery point on, keep what is sound. Returns (log end offset, producers).

    Offsets that are missing between two segments, where it was not compacted, are a power failure's work, which may
    lose the end of one and keep the next. Unless the log `may_have_gaps`, it ends there: a replica that has lost
    something must know. An only copy may: nobody else has what lies behind, nor behind damage in the trusted part.
    """
    first = max((index for index, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    remove_snapshots_after(storage, directory, segments[first].base_offset)
    try:
        producers = _producers_before(storage, directory, segments, first)
    except CorruptBatchError as error:
        if not may_have_gaps:
            _log.error("Checking all of %s: %s", directory, error)
            return recover(
                storage, directory, segments, epochs, config, 0, cleaner_offset=cleaner_offset, may_have_gaps=False
            )
        _log.error("%s: no producer from before offset %d is known: %s", directory, segments[first].base_offset, error)
        producers = ProducerState()
        producers.clear(segments[first].base_offset)
    end_offset = segments[first].base_offset
    known_epochs = epochs.entries
    epochs.truncate_from_end(end_offset)  # what began before keeps its start, the rest stands in the records
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first and segment.base_offset < end_offset:
            _log.error(
                "%s overlaps the segment before it, which ends at offset %d: removed",
                segment.path(LOG_SUFFIX),
                end_offset,
            )
            drop_after(segments, index)
            break
        if index > first and segment.base_offset > max(end_offset, cleaner_offset):
            _log.error("%s: offsets %d to %d are missing", directory, end_offset, segment.base_offset - 1)
            if not may_have_gaps:
                drop_after(segments, index)
                break
        limit = segments[index + 1].base_offset if index + 1 < len(segments) else segment.base_offset + OFFSETS_MAX
        epochs_between = _EpochsBetween(known_epochs, epochs, end_offset)
        drop_behind = partial(drop_after, segments, index + 1)
        end_offset, is_whole = _recover_segment(segment, producers, epochs_between, config, limit, drop_behind)
        if not is_whole:
            break
    producers.end_offset = end_offset
    if end_offset > segments[0].base_offset:
        try:
            storage.write(f"{directory}/{file_name(end_offset, SNAPSHOT_SUFFIX)}", producers.encode_snapshot())
        except OSError as error:
            _log.warning("Going on without a producer snapshot of %s: %s", directory, error.strerror or error)
    remove_stray_snapshots(storage, directory, segments)
    return end_offset, producers


def _producers_before(storage: Storage, directory: str, segments: list[LogSegment], first: int) -> ProducerState:
    """What is known of producers where the segment `first` begins.  Raises CorruptBatchError."""
    if first:
        return load_producers(storage, directory, segments[:first], segments[first].base_offset)
    return load_producers_at(storage, directory, segments[0].base_offset)


class _EpochsBetween:
    """Takes the epochs of batches into `epochs`, and of `known` those that began in a gap before one."""

    def __init__(self, known: Sequence[tuple[int, int]], epochs: LeaderEpochCache, end_offset: int) -> None:
        self._known = known
        self._epochs = epochs
        self._end_offset = end_offset

    def add(self, header: BatchHeader) -> None:
        """The next batch follows what ends at `end_offset`, at once or behind a gap."""
        epochs, epoch, base_offset = self._epochs, header.partition_leader_epoch, header.base_offset
        if epoch != epochs.latest_epoch and base_offset > self._end_offset:
            for known_epoch, start_offset in self._known:
                if self._end_offset <= start_offset <= base_offset and epochs.latest_epoch < known_epoch <= epoch:
                    epochs.assign(known_epoch, start_offset)
        epochs.assign(epoch, base_offset)
        self._end_offset = header.next_offset


def drop_after(segments: list[LogSegment], index: int) -> None:
    """Set the segments from `index` on aside, under `.deleted` names; the last first, so that no hole is ever left."""
    for segment in reversed(segments[index:]):
        _log.error("Removing %s: it follows what is broken or missing", segment.path(LOG_SUFFIX))
        segment.mark_deleted()
    del segments[index:]


def _recover_segment(
    segment: LogSegment,
    producers: ProducerState,
    epochs: _EpochsBetween,
    config: LogConfig,
    limit: int,
    drop_behind: Callable[[], None],
) -> tuple[int, bool]:
    """Check every batch of a segment and rebuild its indexes. Returns (offset after the last sound one, all sound?).

    What lies behind a broken one is dropped before that is cut away: until then the next start finds it again.
    """
    segment.reset_indexes()
    next_offset = segment.base_offset
    sound_bytes = 0
    try:
        for position, header in _checked_batches(segment, next_offset, limit, producers):
            segment.note(header, position, config.index_interval_bytes)
            epochs.add(header)
            next_offset = header.next_offset
            sound_bytes = position + header.size_bytes
    except CorruptBatchError as error:
        is_unwritten = segment.is_unwritten_from(sound_bytes)
        if not is_unwritten:
            _log.error(
                "Cutting %s at byte %d (offset %d), %d bytes behind it are lost: %s",
                segment.path(LOG_SUFFIX),
                sound_bytes,
                next_offset,
                segment.size_bytes - sound_bytes,
                error.reason,
            )
        is_whole = is_unwritten and next_offset == limit
        if not is_whole:
            drop_behind()
        segment.cut(sound_bytes)
        _finish(segment)
        return next_offset, is_whole
    _finish(segment)
    return next_offset, True


def _checked_batches(
    segment: LogSegment, next_offset: int, limit: int, producers: ProducerState
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch, checked and taken into the producer state. Raises CorruptBatchError."""
    for position, header, batch in segment.iter_checked_batches(0):
        if not next_offset <= header.base_offset <= header.last_offset < limit:
            reason = (
                f"offsets {header.base_offset} to {header.last_offset} where {next_offset} to {limit - 1} may stand"
            )
            raise CorruptBatchError(position, reason)
        next_offset = header.next_offset
        if header.producer_id >= 0:
            replay_producer(producers, header, batch)
        yield position, header


def _finish(segment: LogSegment) -> None:
    """Write the indexes if the disk lets us; a full one must not keep a broker from starting and deleting old data."""
    try:
        segment.finish()
    except OSError as error:
        _log.warning("Keeping the indexes of %s in memory: %s", segment.path(LOG_SUFFIX), error.strerror or error)
