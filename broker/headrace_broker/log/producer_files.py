"""The producer snapshots in a partition's directory, and the replay of batches on top of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace_broker.log.producer_state import CorruptSnapshotError, ProducerState
from headrace_broker.log.segment import SNAPSHOT_SUFFIX, LogSegment, file_name, offset_of
from headrace_broker.log.storage import Storage
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.control import ControlType, parse_control_key, parse_coordinator_epoch
from headrace_broker.records.reader import read_batch

_log = logging.getLogger(__name__)
_KEPT_EVERY_BATCHES = 1000
_KEPT_EVERY_PRODUCERS = 10


class KeptSnapshots:
    """Snapshots in memory, from which a log that is cut goes on: its files may be a gigabyte of batches apart.

    There are two: one from below the high watermark, where nothing is cut, and a newer one.
    """

    __slots__ = ("_batches_left", "_newer", "_older")

    def __init__(self) -> None:
        self._older: tuple[int, bytes] | None = None  # (end offset, snapshot)
        self._newer: tuple[int, bytes] | None = None
        self._batches_left = _KEPT_EVERY_BATCHES

    def appended(self, batches: int, producers: ProducerState, high_watermark: int) -> None:
        """So many batches more are in `producers`: keep a snapshot when replaying them would take longer."""
        self._batches_left -= batches
        if self._batches_left <= 0:
            self._batches_left = max(_KEPT_EVERY_BATCHES, _KEPT_EVERY_PRODUCERS * len(producers.producers))
            if self._newer is None or self._newer[0] <= high_watermark:
                self._older, self._newer = self._newer, (producers.end_offset, producers.encode_snapshot())

    def cut(self, end_offset: int) -> tuple[int, bytes] | None:
        """Forget what lies behind the new end; returns the newest that is left."""
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
    kept: tuple[int, bytes] | None = None,
) -> ProducerState:
    """Return what the newest sound snapshot up to `end_offset` and the batches after it say. Raises OSError.

    `kept`: (offset, snapshot) from memory.
    """
    producers = ProducerState()
    offsets = {offset for offset in _snapshot_offsets(storage, directory) if offset <= end_offset}
    if kept is not None:
        offsets.add(kept[0])
    for offset in sorted(offsets, reverse=True):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            in_memory = kept[1] if kept is not None and kept[0] == offset else None
            producers.load_snapshot(storage.read(path) if in_memory is None else in_memory, offset)
            for entry in producers.producers.values():
                entry.is_active = in_memory is not None  # whoever is in memory was heard of since the start
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
        if parse_control_key(columns.keys[0]) in (ControlType.ABORT, ControlType.COMMIT):
            producers.update_marker(header, parse_coordinator_epoch(columns.values[0]))
    except ValueError as error:
        raise CorruptBatchError(0, str(error)) from error


def load_producers_at(storage: Storage, directory: str, base_offset: int) -> ProducerState:
    """Return what the snapshot at `base_offset` says, nothing if there is none. Raises OSError."""
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
