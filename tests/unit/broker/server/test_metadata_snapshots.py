"""Tests of writing, loading and fetching metadata snapshots, including kills of the process during these steps."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshots import image_from_records, image_records
from headrace_broker.protocol.metadata_records import MetadataRecord, ProducerIdsRecord, TopicRecord
from headrace_broker.records.batch import iter_batches
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.snapshot_files import SnapshotError, encode_snapshot, parse_snapshot
from headrace_broker.server.kraft.snapshotter import SnapshotPolicy, Snapshotter
from support.killed_storage import Killed, KilledStorage

DIRECTORY = "/data/__cluster_metadata-0"
NOW_MS = 1_700_000_000_000


def opened(storage: MemoryStorage) -> MetadataLog:
    storage.makedirs("/data")
    return MetadataLog(storage, LogDirectory(storage, "/data"), lambda: NOW_MS)


def block(number: int) -> list[MetadataRecord]:
    return [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000 * number)]


def image_at(offset: int, epoch: int = 1) -> MetadataImage:
    return MetadataImage(offset=offset, epoch=epoch, next_producer_id=(offset + 1) * 1000)


def filled(storage: MemoryStorage, count: int, epoch: int = 1) -> MetadataLog:
    log = opened(storage)
    for number in range(1, count + 1):
        log.append(block(number), epoch)
    return log


def write_snapshot(log: MetadataLog, image: MetadataImage) -> tuple[int, int]:
    snapshot = image.offset + 1, image.epoch
    log.snapshots.write_chunk(snapshot, 0, b"".join(encode_snapshot(image_records(image), image.epoch, NOW_MS)))
    log.snapshots.finish(snapshot)
    return snapshot


def names(storage: MemoryStorage) -> list[str]:
    return sorted(name for name in storage.listdir(DIRECTORY) if name.endswith((".log", ".checkpoint", ".part")))


def loaded(log: MetadataLog, end_offset: int) -> MetadataImage:
    snapshot, records = log.pop_snapshot_records()
    image, start = MetadataImage(), 0
    if snapshot is not None:
        image, start = image_from_records(records, snapshot[0] - 1, snapshot[1]), snapshot[0]
    for batch, offset, epoch in log.batches(start, end_offset):
        image = apply_records(image, batch, offset, epoch)
    return image


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def snapshotted(log: MetadataLog, images: Sequence[MetadataImage], **policy: int) -> None:
    """Commit `images` in order. Write the snapshots that are due, by default one after each image.

    `policy` sets fields of SnapshotPolicy.
    """
    now = [images[0]]
    snapshot_policy = SnapshotPolicy(**{"max_bytes_between": 1, **policy})
    snapshotter = Snapshotter(log, lambda: now[0], snapshot_policy, lambda: NOW_MS)
    for image in images:
        now[0] = image
        while log.log_end_offset <= image.offset:
            log.append(block(log.log_end_offset + 1), image.epoch)
        snapshotter.on_commit()
        await snapshotter.close()


class TestFiles:
    def test_snapshot_file_names_have_kafkas_format(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 3)
        write_snapshot(log, image_at(2))
        assert names(storage) == ["00000000000000000000.log", "00000000000000000003-0000000001.checkpoint"]
        records = parse_snapshot(storage.read(f"{DIRECTORY}/00000000000000000003-0000000001.checkpoint"))
        assert [record.next_producer_id for record in records] == [3000]  # type: ignore[attr-defined]

    def test_truncated_or_corrupt_metadata_snapshot_is_detected(self) -> None:
        image = MetadataImage(features={"metadata.version": 30}, next_producer_id=5)
        data = b"".join(encode_snapshot(image_records(image), 3, NOW_MS))
        assert len(parse_snapshot(data)) == 2
        for size in range(len(data)):
            with pytest.raises(SnapshotError):
                parse_snapshot(data[:size])
        with pytest.raises(SnapshotError):
            parse_snapshot(data + b"\0")
        covered = [start + at for start, header in iter_batches(data) for at in range(17, header.size_bytes)]
        for position in covered[::7]:
            broken = bytearray(data)
            broken[position] ^= 0xFF
            with pytest.raises(SnapshotError):
                parse_snapshot(bytes(broken))

    def test_incomplete_snapshot_is_removed_at_start(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 1)
        log.append_snapshot((1, 1), 0, b"half")
        assert len(names(storage)) == 2
        assert opened(storage).snapshots.ids == []
        assert names(storage) == ["00000000000000000000.log"]

    def test_snapshot_is_read_and_written_in_chunks(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 4)
        snapshot = write_snapshot(log, image_at(3))
        size, whole = log.read_snapshot(snapshot, 0, 1 << 20) or (0, b"")
        assert size == len(whole)
        other = opened(MemoryStorage())
        other.append_snapshot(snapshot, 0, b"bytes of an abandoned fetch")
        for position in range(0, size, 50):
            part = log.read_snapshot(snapshot, position, 50)
            assert part is not None
            other.append_snapshot(snapshot, position, part[1])
        other.finish_snapshot(snapshot)
        assert loaded(other, 4) == image_at(3)
        assert log.read_snapshot((9, 9), 0, 10) is None


class TestLog:
    def test_start_loads_the_snapshot_and_the_records_after_it(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 10)
        write_snapshot(log, image_at(5))
        log.close()
        again = opened(storage)
        assert loaded(again, 10) == image_at(9)
        assert again.latest_snapshot() == (6, 1)
        assert again.earliest_snapshot() is None
        assert again.log_start_offset == 0

    def test_corrupt_snapshot_is_ignored_when_an_older_snapshot_is_valid(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 10)
        for offset in (3, 7):
            write_snapshot(log, image_at(offset))
        log.close()
        path = f"{DIRECTORY}/00000000000000000008-0000000001.checkpoint"
        storage.write(path, storage.read(path)[:-5])
        again = opened(storage)
        assert again.snapshots.ids == [(4, 1)]
        assert loaded(again, 10) == image_at(9)

    def test_start_fails_when_the_log_begins_at_a_snapshot_and_the_snapshot_is_corrupt(self) -> None:
        storage = MemoryStorage()
        run(snapshotted(filled(storage, 0), [image_at(4), image_at(9)], retention_bytes=1))
        path = f"{DIRECTORY}/00000000000000000010-0000000001.checkpoint"
        storage.write(path, b"")
        with pytest.raises(StartError, match="begins at offset 10 and has no valid snapshot"):
            opened(storage)

    def test_fetched_snapshot_replaces_the_log(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 3)
        old = write_snapshot(log, image_at(1))
        data = b"".join(encode_snapshot(image_records(image_at(99, 7)), 7, NOW_MS))
        log.append_snapshot((100, 7), 0, data)
        log.finish_snapshot((100, 7))
        assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (100, 100, 100)
        assert log.last_fetched_epoch == 7
        assert (log.earliest_snapshot(), log.latest_snapshot()) == ((100, 7), (100, 7))
        assert old not in log.snapshots.ids
        log.append(block(101), 8)
        log.close()
        again = opened(storage)
        assert again.log_start_offset == 100
        assert loaded(again, 101) == image_at(100, 8)

    def test_corrupt_fetched_snapshot_does_not_replace_the_log(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 3)
        data = b"".join(encode_snapshot(image_records(image_at(99, 7)), 7, NOW_MS))
        log.append_snapshot((100, 7), 0, data[:-3])
        with pytest.raises(OSError, match="fetched from the leader is corrupt"):
            log.finish_snapshot((100, 7))
        assert (log.log_start_offset, log.log_end_offset, log.latest_snapshot()) == (0, 3, None)
        assert names(storage) == ["00000000000000000000.log"]

    def test_metadata_log_is_reset_to_the_end_offset_of_the_snapshot_if_the_log_ends_earlier(self) -> None:
        """In a power failure, an observer may lose unsynced records that its synced snapshot contains."""
        storage = MemoryStorage()
        log = filled(storage, 3)
        write_snapshot(log, image_at(49))
        log.close()
        again = opened(storage)
        assert (again.log_start_offset, again.log_end_offset) == (50, 50)
        assert loaded(again, 50) == image_at(49)

    def test_end_offset_of_an_epoch_before_the_snapshot_is_the_snapshots_end_offset(self) -> None:
        log = opened(MemoryStorage())
        log.append_snapshot((100, 7), 0, b"".join(encode_snapshot(image_records(image_at(99, 7)), 7, NOW_MS)))
        log.finish_snapshot((100, 7))
        assert [log.end_offset_for_epoch(epoch) for epoch in (3, 7, 9)] == [(100, 7)] * 3
        log.append(block(101), 9)
        assert log.end_offset_for_epoch(9) == (101, 9)
        assert log.end_offset_for_epoch(7) == (100, 7)
        assert log.end_offset_for_epoch(8) == (100, 7)


class TestSnapshotSchedule:
    def test_log_segments_before_a_new_snapshot_are_deleted(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 0)
        run(snapshotted(log, [image_at(4), image_at(9), image_at(14)], retention_bytes=1))
        assert log.snapshots.ids == [(15, 1)]
        assert names(storage) == [
            "00000000000000000015-0000000001.checkpoint",
            "00000000000000000015.log",
        ]
        assert log.earliest_snapshot() == (15, 1)
        log.append(block(16), 1)
        log.close()
        again = opened(storage)
        assert again.log_start_offset == 15
        assert loaded(again, 16) == image_at(15)

    def test_older_metadata_snapshots_are_kept_if_the_metadata_log_is_smaller_than_retention_bytes(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4), image_at(9), image_at(14)], retention_bytes=1 << 20))
        assert [end for end, _ in log.snapshots.ids] == [5, 10, 15]
        assert log.log_start_offset == 0

    def test_metadata_snapshot_is_written_only_if_the_log_has_new_records(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4), image_at(4), image_at(4)], max_interval_ms=0))
        assert log.snapshots.ids == [(5, 1)]

    def test_metadata_snapshot_is_not_written_before_the_log_has_grown_by_the_configured_number_of_bytes(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4)], max_bytes_between=1_000_000))
        assert log.snapshots.ids == []

    def test_metadata_snapshot_that_cannot_be_written_to_a_full_disk_is_skipped_and_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = filled(MemoryStorage(), 0)

        def full(snapshot: tuple[int, int], position: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        log.snapshots.write_chunk = full  # type: ignore[method-assign]
        run(snapshotted(log, [image_at(4)]))
        assert log.snapshots.ids == []
        assert "Metadata snapshot: cannot write the snapshot" in caplog.text


def test_snapshot_of_a_thousand_topics_is_encoded_in_chunks() -> None:
    image = MetadataImage()
    records = [TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16)) for number in range(1000)]
    image = apply_records(image, records, 999, 1)
    chunks = list(encode_snapshot(image_records(image), 1, NOW_MS))
    assert len(chunks) == 12
    assert image_from_records(parse_snapshot(b"".join(chunks)), 999, 1) == image


def test_directory_contains_the_old_log_or_the_snapshot_after_a_kill() -> None:
    """A fetched snapshot replaces the metadata log. A kill of the process must not leave a mixture of both.

    The old log has diverged from the leader's log. Records of the old log must not remain after the end offset of the
    snapshot. If the old log has lost its first records and there is no snapshot, the node cannot start.
    """
    before = KilledStorage()
    log = opened(before)
    for number in range(1, 9):
        log.append(block(number), 1)
        log.roll()
    found = set()
    for count in range(40):
        storage = copy.deepcopy(before)
        log, snapshot = opened(storage), (5, 2)
        log.append_snapshot(snapshot, 0, b"".join(encode_snapshot(image_records(image_at(4, 2)), 2, NOW_MS)))
        storage.renames_left = count
        with suppress(Killed):
            log.finish_snapshot(snapshot)
        storage.renames_left = 1 << 30
        log = opened(storage)
        found.add((log.latest_snapshot(), log.log_end_offset, log.last_fetched_epoch))
    assert found == {(None, 8, 1), ((5, 2), 5, 2)}


def test_leader_epoch_checkpoint_is_synced_together_with_metadata_records() -> None:
    """If the epochs were outdated after a power failure, this node would truncate records that the leader also has."""
    log = filled(MemoryStorage(), 2)
    log.roll()
    log.append(block(3), 2)
    assert f"{DIRECTORY}/leader-epoch-checkpoint" in log.files_to_sync()
