"""Loads the producer state of a partition from its snapshot files and from the batches after them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace_broker.log.producer_state import CorruptSnapshotError, ProducerStateManager
from headrace_broker.log.segment import SNAPSHOT_SUFFIX, LogSegment, file_name, offset_of
from headrace_broker.log.storage import Storage
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.control import ControlType, parse_control_key, parse_coordinator_epoch
from headrace_broker.records.reader import read_batch

_log = logging.getLogger(__name__)
_BATCHES_PER_SNAPSHOT_MIN = 1000
_BATCHES_PER_PRODUCER = 10


class RecentSnapshots:
    """Keeps two producer snapshots in memory. Without them, a truncation would replay up to a gigabyte of batches.

    The older snapshot is below the high watermark, so no truncation removes it. The newer snapshot shortens the replay.
    """

    __slots__ = ("_batches_left", "_newer", "_older")

    def __init__(self) -> None:
        self._older: tuple[int, bytes] | None = None  # (end offset, snapshot)
        self._newer: tuple[int, bytes] | None = None
        self._batches_left = _BATCHES_PER_SNAPSHOT_MIN

    def on_append(self, batches: int, producers: ProducerStateManager, high_watermark: int) -> None:
        """Count `batches` appended batches. After many batches, store a snapshot of `producers`.

        A snapshot is due when replaying the batches since the last snapshot would take longer than creating a snapshot.
        This object keeps the last two snapshots. If the last snapshot is above `high_watermark`, no new snapshot is
        stored. The older of the two snapshots is therefore never above the high watermark.
        """
        self._batches_left -= batches
        if self._batches_left <= 0:
            self._batches_left = max(_BATCHES_PER_SNAPSHOT_MIN, _BATCHES_PER_PRODUCER * len(producers.producers))
            if self._newer is None or self._newer[0] <= high_watermark:
                self._older, self._newer = self._newer, (producers.end_offset, producers.encode_snapshot())

    def truncate(self, end_offset: int) -> tuple[int, bytes] | None:
        """Remove the snapshots after `end_offset`, the new log end offset.

        Return (end offset, content) of the newest remaining snapshot, or None.
        """
        if self._newer is not None and self._newer[0] > end_offset:
            self._older, self._newer = None, self._older
        if self._newer is not None and self._newer[0] > end_offset:
            self._newer = None
        return self._newer


def load_producers(
    storage: Storage,
    directory: str,
    segments: Sequence[LogSegment],
    end_offset: int,
    recent: tuple[int, bytes] | None = None,
) -> ProducerStateManager:
    """Return the producer state at `end_offset`, from the newest valid snapshot and the batches after it.

    `recent` is the newest (end offset, snapshot) in memory, if any. Raises OSError, and CorruptBatchError for a corrupt
    batch.
    """
    producers = ProducerStateManager()
    offsets = {offset for offset in _snapshot_offsets(storage, directory) if offset <= end_offset}
    if recent is not None:
        offsets.add(recent[0])
    for offset in sorted(offsets, reverse=True):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            in_memory = recent[1] if recent is not None and recent[0] == offset else None
            producers.load_snapshot(storage.read(path) if in_memory is None else in_memory, offset)
            for entry in producers.producers.values():
                entry.is_active = in_memory is not None  # a snapshot in memory was taken since the log was opened
            break
        except CorruptSnapshotError as error:
            _log.warning("Deleting corrupt producer snapshot %s: %s", path, error)
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
    """Remove the producer snapshots after `offset`."""
    for snapshot_offset in _snapshot_offsets(storage, directory):
        if snapshot_offset > offset:
            storage.remove(f"{directory}/{file_name(snapshot_offset, SNAPSHOT_SUFFIX)}")


def remove_stray_snapshots(storage: Storage, directory: str, segments: Sequence[LogSegment]) -> None:
    """As Kafka does, remove the producer snapshots whose offset is not the base offset of a segment.

    Keep the newest of these snapshots if its offset is after the last segment's base offset.
    """
    base_offsets = {segment.base_offset for segment in segments}
    strays = sorted(offset for offset in _snapshot_offsets(storage, directory) if offset not in base_offsets)
    keep = strays[-1] if strays and strays[-1] > segments[-1].base_offset else None
    for offset in strays:
        if offset != keep:
            storage.remove(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")


def _replay_segment(producers: ProducerStateManager, segment: LogSegment, end_offset: int) -> None:
    start = segment.locate(producers.end_offset) if producers.end_offset > segment.base_offset else 0
    for position, header in segment.iter_headers(start):
        if header.base_offset >= end_offset:
            return
        if header.producer_id >= 0 and header.last_offset >= producers.end_offset:
            control = segment.read_whole_batch(position, header) if header.is_control else b""
            replay_producer(producers, header, memoryview(control))


def replay_producer(producers: ProducerStateManager, header: BatchHeader, batch: memoryview) -> None:
    """Update the producer state with a batch of the log. `batch` is read only if it is a control batch.

    Raises CorruptBatchError for a control batch that cannot be parsed.
    """
    if not header.is_control:
        producers.update(header)
        return
    columns = read_batch(batch, 0, header)
    if columns.keys is None or not len(columns):
        return
    try:
        if parse_control_key(columns.keys[0]) in (ControlType.ABORT, ControlType.COMMIT):
            producers.update_marker(header, parse_coordinator_epoch(columns.values[0]))
    except ValueError as error:
        raise CorruptBatchError(0, str(error)) from error


def load_producers_at(storage: Storage, directory: str, base_offset: int) -> ProducerStateManager:
    """Return the producer state in the snapshot at `base_offset`. Raises OSError.

    If no snapshot exists, return an empty producer state.
    """
    producers = ProducerStateManager()
    producers.clear(base_offset)
    path = f"{directory}/{file_name(base_offset, SNAPSHOT_SUFFIX)}"
    if storage.exists(path):
        try:
            producers.load_snapshot(storage.read(path), base_offset)
        except CorruptSnapshotError as error:
            _log.warning("Deleting corrupt producer snapshot %s: %s", path, error)
            storage.remove(path)
    return producers
