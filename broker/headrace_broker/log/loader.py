"""Open a partition's directory: trust it after a clean shutdown, else check it and cut at the first bad batch.

Recovery reads every segment from the one that holds the recovery point on, checks each batch (size, magic, CRC, rising
offsets), rebuilds indexes, leader epochs and producer state from them, cuts the file where the first bad batch begins,
and deletes the segments behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace_broker.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    MalformedFileError,
    decode_epoch_checkpoint,
    decode_partition_metadata,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.producer_state import CorruptSnapshotError, ProducerState
from headrace_broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    LogSegment,
    OpenSegments,
    file_name,
)
from headrace_broker.log.storage import Storage
from headrace_broker.records.batch import BatchHeader, CorruptBatchError, iter_batches, verify_crc
from headrace_broker.records.control import parse_control_key, parse_coordinator_epoch
from headrace_broker.records.reader import read_batch

_log = logging.getLogger(__name__)
SWAP_SUFFIX = ".swap"
_RECOVERY_CHUNK_SIZE = 1024 * 1024
_LEFT_OVER_SUFFIXES = (DELETED_SUFFIX, ".cleaned", ".tmp")


@dataclass(slots=True)
class LoadedLog:
    """What opening a directory found."""

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    epochs_changed: bool
    producers: ProducerState
    topic_id: bytes | None


def load(
    storage: Storage,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    was_closed_cleanly: bool,
    recovery_point: int,
    log_start_offset: int,
    open_segments: OpenSegments,
) -> LoadedLog:
    """Return the log in `directory`, made if missing. Raises OSError."""
    storage.makedirs(directory)
    names = _without_left_overs(storage, directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        names = _finish_swaps(storage, directory, names)
    segments = [
        LogSegment(
            storage,
            directory,
            base_offset,
            open_segments=open_segments,
            size_bytes=storage.size(f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"),
            started_ms=now_ms,
        )
        for base_offset in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX))
    ]
    epochs = _load_epochs(storage, directory, names)
    saved_epochs = epochs.entries
    if not segments:
        segments = [
            new_segment(storage, directory, log_start_offset, config, now_ms=now_ms, open_segments=open_segments)
        ]
    producers: ProducerState | None = None
    if was_closed_cleanly:
        try:
            end_offset = recovery_point = _end_of(segments[-1])
            producers = load_producers(storage, directory, segments, end_offset)
        except CorruptBatchError as error:
            _log.warning("Checking %s, which was closed cleanly: %s", directory, error)
            recovery_point = segments[-1].base_offset
    if producers is None:
        end_offset, producers = _recover(storage, directory, segments, epochs, config, recovery_point)
        recovery_point = min(recovery_point, end_offset)
    segments[-1].is_active = True
    start_offset = max(log_start_offset, segments[0].base_offset)
    if start_offset > end_offset:
        _log.warning(
            "%s ends at offset %d, before its log start offset %d: starting there", directory, end_offset, start_offset
        )
        for segment in segments:
            segment.mark_deleted()
        segments = [new_segment(storage, directory, start_offset, config, now_ms=now_ms, open_segments=open_segments)]
        end_offset = recovery_point = start_offset
        producers.clear(end_offset)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    return LoadedLog(
        segments=segments,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        recovery_point=recovery_point,
        epochs=epochs,
        epochs_changed=epochs.entries != saved_epochs,
        producers=producers,
        topic_id=_load_topic_id(storage, directory, names),
    )


def offset_of(name: str) -> int:
    """Return the offset in a segment file's name."""
    return int(name.partition(".")[0])


def new_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    config: LogConfig,
    *,
    now_ms: int,
    open_segments: OpenSegments,
    roll_jitter_ms: int = 0,
) -> LogSegment:
    """Return a new active segment with its three files on disk, whatever stood there before removed."""
    segment = LogSegment(
        storage,
        directory,
        base_offset,
        open_segments=open_segments,
        size_bytes=0,
        started_ms=now_ms,
        is_new=True,
        roll_jitter_ms=roll_jitter_ms,
    )
    storage.remove(segment.path(LOG_SUFFIX))
    if config.preallocate:
        segment.file.allocate(config.segment_bytes)
    else:
        storage.write(segment.path(LOG_SUFFIX), b"")
    segment.write_indexes()
    return segment


def _without_left_overs(storage: Storage, directory: str) -> list[str]:
    """Remove the files of interrupted work; return the names that stay."""
    names = []
    for name in storage.listdir(directory):
        if name.endswith(_LEFT_OVER_SUFFIXES):
            storage.remove(f"{directory}/{name}")
        else:
            names.append(name)
    return names


def _finish_swaps(storage: Storage, directory: str, names: list[str]) -> list[str]:
    """Put compacted segments in the place of those they were made from, where a stop came between (KAFKA-6264).

    A `.swap` file is complete; the segments it replaces begin within its offsets. Returns the names then.
    """
    for name in sorted(name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        base_offset = offset_of(name)
        path = f"{directory}/{name}"
        size_bytes = storage.size(path)
        end_offset = base_offset
        file = storage.open(path)
        for _, header in iter_batches(file.pread(size_bytes, 0)):
            end_offset = header.next_offset
        file.close()
        for old in [old for old in names if old.endswith(LOG_SUFFIX) and base_offset <= offset_of(old) < end_offset]:
            _log.info("Replacing %s/%s by the compacted %s", directory, old, name)
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                storage.remove(f"{directory}/{file_name(offset_of(old), suffix)}")
        storage.rename(path, path.removesuffix(SWAP_SUFFIX))
    for name in storage.listdir(directory):
        if name.endswith(SWAP_SUFFIX):  # indexes: cheaper to build anew than to trust
            storage.remove(f"{directory}/{name}")
    return storage.listdir(directory)


def _load_epochs(storage: Storage, directory: str, names: Sequence[str]) -> LeaderEpochCache:
    if LEADER_EPOCH_FILE not in names:
        return LeaderEpochCache()
    try:
        return LeaderEpochCache(decode_epoch_checkpoint(storage.read(f"{directory}/{LEADER_EPOCH_FILE}")))
    except MalformedFileError as error:
        _log.warning("Rebuilding %s/%s from the records: %s", directory, LEADER_EPOCH_FILE, error)
        return LeaderEpochCache()


def _load_topic_id(storage: Storage, directory: str, names: Sequence[str]) -> bytes | None:
    if PARTITION_METADATA_FILE not in names:
        return None
    try:
        return decode_partition_metadata(storage.read(f"{directory}/{PARTITION_METADATA_FILE}"))
    except MalformedFileError as error:
        _log.warning(
            "%s/%s is not readable, the topic id is taken from the metadata: %s",
            directory,
            PARTITION_METADATA_FILE,
            error,
        )
        return None


def _end_of(segment: LogSegment) -> int:
    """Return the offset after the last record of a segment that is in order."""
    end_offset = segment.base_offset
    if segment.size_bytes:
        index = segment.index
        for _, header in segment.iter_headers(index.positions[-1] if len(index) else 0):
            end_offset = header.next_offset
    return end_offset


# Producers


def load_producers(storage: Storage, directory: str, segments: Sequence[LogSegment], end_offset: int) -> ProducerState:
    """Return what the newest sound snapshot up to `end_offset` and the batches after it say. Raises OSError."""
    producers = ProducerState()
    offsets = _snapshot_offsets(storage, directory)
    for offset in sorted((offset for offset in offsets if offset <= end_offset), reverse=True):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            producers.load_snapshot(storage.read(path), offset)
            break
        except CorruptSnapshotError as error:
            _log.warning("Skipping %s: %s", path, error)
            storage.remove(path)
    else:
        producers.clear(segments[0].base_offset)
    for index, segment in enumerate(segments):
        is_last = index + 1 == len(segments)
        if (end_offset if is_last else segments[index + 1].base_offset) > producers.end_offset:
            _replay_segment(producers, segment, end_offset)
    producers.end_offset = end_offset
    return producers


def _snapshot_offsets(storage: Storage, directory: str) -> list[int]:
    return [offset_of(name) for name in storage.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX)]


def remove_snapshots_after(storage: Storage, directory: str, offset: int) -> None:
    """Remove the producer snapshots of offsets that the log no longer reaches."""
    for snapshot_offset in _snapshot_offsets(storage, directory):
        if snapshot_offset > offset:
            storage.remove(f"{directory}/{file_name(snapshot_offset, SNAPSHOT_SUFFIX)}")


def remove_stray_snapshots(storage: Storage, directory: str, segments: Sequence[LogSegment]) -> None:
    """Keep the snapshots at segment borders and the newest other one, as Kafka does."""
    borders = {segment.base_offset for segment in segments}
    strays = sorted(offset for offset in _snapshot_offsets(storage, directory) if offset not in borders)
    keep = strays[-1] if strays and strays[-1] > segments[-1].base_offset else None
    for offset in strays:
        if offset != keep:
            storage.remove(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")


def _replay_segment(producers: ProducerState, segment: LogSegment, end_offset: int) -> None:
    start = segment.locate(producers.end_offset) if producers.end_offset > segment.base_offset else 0
    for position, header in segment.iter_headers(start):
        if header.base_offset >= end_offset:
            return
        if header.producer_id >= 0 and header.last_offset >= producers.end_offset:
            control = segment.read_whole_batch(position, header) if header.is_control else b""
            replay_producer(producers, header, memoryview(control))


def replay_producer(producers: ProducerState, header: BatchHeader, batch: memoryview) -> None:
    """Take a batch that is in the log into the producer state; `batch` is looked at for control batches only."""
    if not header.is_control:
        producers.update(header)
        return
    columns = read_batch(batch, 0, header)
    if columns.keys is None or not len(columns):
        return
    try:
        if parse_control_key(columns.keys[0]) in (0, 1):
            producers.update_marker(header, parse_coordinator_epoch(columns.values[0]))
    except ValueError as error:
        raise CorruptBatchError(0, str(error)) from error


# Recovery


def _recover(
    storage: Storage,
    directory: str,
    segments: list[LogSegment],
    epochs: LeaderEpochCache,
    config: LogConfig,
    recovery_point: int,
) -> tuple[int, ProducerState]:
    """Check the segments from the recovery point on, keep what is sound. Returns (log end offset, producers)."""
    first = max((index for index, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
    remove_snapshots_after(storage, directory, segments[first].base_offset)
    producers = load_producers(storage, directory, segments[:first], segments[first].base_offset) if first else None
    if producers is None:
        producers = _producers_at_start(storage, directory, segments[0].base_offset)
    end_offset = segments[first].base_offset
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first and segment.base_offset < end_offset:
            _log.error(
                "%s overlaps the segment before it, which ends at offset %d: removed",
                segment.path(LOG_SUFFIX),
                end_offset,
            )
            _drop_after(segments, index)
            break
        end_offset, is_whole = _recover_segment(segment, producers, epochs, config)
        if not is_whole:
            _drop_after(segments, index + 1)
            break
    producers.end_offset = end_offset
    if end_offset > segments[0].base_offset:
        storage.write(f"{directory}/{file_name(end_offset, SNAPSHOT_SUFFIX)}", producers.encode_snapshot())
    remove_stray_snapshots(storage, directory, segments)
    return end_offset, producers


def _producers_at_start(storage: Storage, directory: str, base_offset: int) -> ProducerState:
    producers = ProducerState()
    producers.clear(base_offset)
    path = f"{directory}/{file_name(base_offset, SNAPSHOT_SUFFIX)}"
    if storage.exists(path):
        try:
            producers.load_snapshot(storage.read(path), base_offset)
        except CorruptSnapshotError as error:
            _log.warning("Skipping %s: %s", path, error)
            storage.remove(path)
    return producers


def _drop_after(segments: list[LogSegment], index: int) -> None:
    for segment in segments[index:]:
        _log.error("Removing %s: it follows a batch that is broken", segment.path(LOG_SUFFIX))
        segment.mark_deleted()
    del segments[index:]


def _recover_segment(
    segment: LogSegment, producers: ProducerState, epochs: LeaderEpochCache, config: LogConfig
) -> tuple[int, bool]:
    """Check every batch of a segment and rebuild its indexes. Returns (offset after the last sound one, all sound?)."""
    segment.reset_indexes()
    next_offset = segment.base_offset
    sound_bytes = 0
    try:
        for position, header in _checked_batches(segment, next_offset, producers):
            segment.note(header, position, config.index_interval_bytes)
            if header.partition_leader_epoch >= 0:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            next_offset = header.next_offset
            sound_bytes = position + header.size_bytes
    except CorruptBatchError as error:
        _log.error(
            "Cutting %s at byte %d (offset %d), %d bytes behind it are lost: %s",
            segment.path(LOG_SUFFIX),
            sound_bytes,
            next_offset,
            segment.size_bytes - sound_bytes,
            error.reason,
        )
        segment.file.truncate(sound_bytes)
        segment.size_bytes = sound_bytes
        segment.finish()
        return next_offset, False
    segment.finish()
    return next_offset, True


def _checked_batches(
    segment: LogSegment, next_offset: int, producers: ProducerState
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch, checked and taken into the producer state. Raises CorruptBatchError."""
    chunk, chunk_start = memoryview(b""), 0
    for position, header in segment.iter_headers(0):
        size = header.size_bytes
        if position + size > chunk_start + len(chunk):
            wanted = min(max(size, _RECOVERY_CHUNK_SIZE), segment.size_bytes - position)
            chunk, chunk_start = memoryview(segment.file.pread(wanted, position)), position
        at = position - chunk_start
        if len(chunk) - at < size:
            raise CorruptBatchError(position, "the file ends inside it")
        verify_crc(chunk, at, header)
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise CorruptBatchError(position, f"offset {header.base_offset} where {next_offset} is next")
        next_offset = header.next_offset
        if header.producer_id >= 0:
            replay_producer(producers, header, chunk[at : at + size])
        yield position, header
