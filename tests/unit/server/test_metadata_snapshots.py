"""Snapshots of the metadata: written beside the log, loaded instead of it, fetched in its place, and never half."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.delta import replayed
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshots import image_of, image_records
from headrace_broker.protocol.metadata_records import MetadataRecord, ProducerIdsRecord, TopicRecord
from headrace_broker.records.batch import iter_batches
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.snapshot_files import SnapshotError, encode_snapshot, parse_snapshot
from headrace_broker.server.kraft.snapshotter import SnapshotPolicy, Snapshotter
from support.mortal_storage import Killed, MortalStorage

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
    log.snapshots.write_part(snapshot, 0, b"".join(encode_snapshot(image_records(image), image.epoch, NOW_MS)))
    log.snapshots.finish(snapshot)
    return snapshot


def names(storage: MemoryStorage) -> list[str]:
    return sorted(name for name in storage.listdir(DIRECTORY) if name.endswith((".log", ".checkpoint", ".part")))


def loaded(log: MetadataLog, end_offset: int) -> MetadataImage:
    snapshot, records = log.take_snapshot_records()
    image, start = MetadataImage(), 0
    if snapshot is not None:
        image, start = image_of(records, snapshot[0] - 1, snapshot[1]), snapshot[0]
    for batch, offset, epoch in log.batches(start, end_offset):
        image = replayed(image, batch, offset, epoch)
    return image


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def snapshotted(log: MetadataLog, images: Sequence[MetadataImage], **policy: int) -> None:
    """Every image is committed in turn, and a snapshot of each is due."""
    now = [images[0]]
    wanted = SnapshotPolicy(**{"max_bytes_between": 1, **policy})
    snapshotter = Snapshotter(log, lambda: now[0], wanted, lambda: NOW_MS)
    for image in images:
        now[0] = image
        while log.log_end_offset <= image.offset:
            log.append(block(log.log_end_offset + 1), image.epoch)
        snapshotter.committed()
        await snapshotter.close()


class TestFiles:
    def test_names_and_order_are_kafkas(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 3)
        write_snapshot(log, image_at(2))
        assert names(storage) == ["00000000000000000000.log", "00000000000000000003-0000000001.checkpoint"]
        records = parse_snapshot(storage.read(f"{DIRECTORY}/00000000000000000003-0000000001.checkpoint"))
        assert [record.next_producer_id for record in records] == [3000]  # type: ignore[attr-defined]

    def test_every_cut_is_noticed(self) -> None:
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

    def test_what_was_left_half_written_is_removed(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 1)
        log.append_snapshot((1, 1), 0, b"half")
        assert len(names(storage)) == 2
        assert opened(storage).snapshots.ids == []
        assert names(storage) == ["00000000000000000000.log"]

    def test_parts_are_read_and_written_at_positions(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 4)
        snapshot = write_snapshot(log, image_at(3))
        size, whole = log.read_snapshot(snapshot, 0, 1 << 20) or (0, b"")
        assert size == len(whole)
        other = opened(MemoryStorage())
        other.append_snapshot(snapshot, 0, b"something that was begun before")
        for position in range(0, size, 50):
            part = log.read_snapshot(snapshot, position, 50)
            assert part is not None
            other.append_snapshot(snapshot, position, part[1])
        other.finish_snapshot(snapshot)
        assert loaded(other, 4) == image_at(3)
        assert log.read_snapshot((9, 9), 0, 10) is None


class TestLog:
    def test_the_start_reads_the_snapshot_and_what_follows(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 10)
        write_snapshot(log, image_at(5))
        log.close()
        again = opened(storage)
        assert loaded(again, 10) == image_at(9)
        assert again.latest_snapshot() == (6, 1)
        assert again.earliest_snapshot() is None
        assert again.log_start_offset == 0

    def test_a_damaged_snapshot_is_passed_over_for_what_is_sound(self) -> None:
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

    def test_without_its_only_snapshot_a_cut_log_is_refused(self) -> None:
        storage = MemoryStorage()
        run(snapshotted(filled(storage, 0), [image_at(4), image_at(9)], retention_bytes=1))
        path = f"{DIRECTORY}/00000000000000000010-0000000001.checkpoint"
        storage.write(path, b"")
        with pytest.raises(StartError, match="begins at offset 10 and has no sound snapshot"):
            opened(storage)

    def test_a_fetched_snapshot_takes_the_place_of_everything(self) -> None:
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

    def test_a_fetched_snapshot_that_is_damaged_replaces_nothing(self) -> None:
        storage = MemoryStorage()
        log = filled(storage, 3)
        data = b"".join(encode_snapshot(image_records(image_at(99, 7)), 7, NOW_MS))
        log.append_snapshot((100, 7), 0, data[:-3])
        with pytest.raises(OSError, match="came damaged"):
            log.finish_snapshot((100, 7))
        assert (log.log_start_offset, log.log_end_offset, log.latest_snapshot()) == (0, 3, None)
        assert names(storage) == ["00000000000000000000.log"]

    def test_a_log_that_ends_before_its_snapshot_begins_after_it(self) -> None:
        """What an observer had not flushed is gone after a power failure; its snapshot was synced."""
        storage = MemoryStorage()
        log = filled(storage, 3)
        write_snapshot(log, image_at(49))
        log.close()
        again = opened(storage)
        assert (again.log_start_offset, again.log_end_offset) == (50, 50)
        assert loaded(again, 50) == image_at(49)

    def test_where_epochs_end_with_a_snapshot_before_the_log(self) -> None:
        log = opened(MemoryStorage())
        log.append_snapshot((100, 7), 0, b"".join(encode_snapshot(image_records(image_at(99, 7)), 7, NOW_MS)))
        log.finish_snapshot((100, 7))
        assert [log.end_offset_for_epoch(epoch) for epoch in (3, 7, 9)] == [(100, 7)] * 3
        log.append(block(101), 9)
        assert log.end_offset_for_epoch(9) == (101, 9)
        assert log.end_offset_for_epoch(7) == (100, 7)
        assert log.end_offset_for_epoch(8) == (100, 7)


class TestWhen:
    def test_each_takes_the_log_before_it_away(self) -> None:
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

    def test_older_ones_stay_within_the_bytes_that_are_given(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4), image_at(9), image_at(14)], retention_bytes=1 << 20))
        assert [end for end, _ in log.snapshots.ids] == [5, 10, 15]
        assert log.log_start_offset == 0

    def test_nothing_new_is_no_reason(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4), image_at(4), image_at(4)], max_interval_ms=0))
        assert log.snapshots.ids == [(5, 1)]

    def test_it_waits_for_bytes(self) -> None:
        log = filled(MemoryStorage(), 0)
        run(snapshotted(log, [image_at(4)], max_bytes_between=1_000_000))
        assert log.snapshots.ids == []

    def test_a_disk_that_is_full_costs_only_the_snapshot(self, caplog: pytest.LogCaptureFixture) -> None:
        log = filled(MemoryStorage(), 0)

        def full(snapshot: tuple[int, int], position: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        log.snapshots.write_part = full  # type: ignore[method-assign]
        run(snapshotted(log, [image_at(4)]))
        assert log.snapshots.ids == []
        assert "no snapshot of the metadata could be written" in caplog.text


def test_a_thousand_topics_come_in_pieces() -> None:
    image = MetadataImage()
    records = [TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16)) for number in range(1000)]
    image = replayed(image, records, 999, 1)
    pieces = list(encode_snapshot(image_records(image), 1, NOW_MS))
    assert len(pieces) == 12
    assert image_of(parse_snapshot(b"".join(pieces)), 999, 1) == image


def test_a_kill_while_a_fetched_snapshot_takes_the_place_of_the_log_leaves_one_or_the_other() -> None:
    """What follows the snapshot's offset belongs to another leader's log: gone on with, it contradicts what is
    committed; and without what was before, no node starts on it."""
    before = MortalStorage()
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


def test_the_epochs_are_synced_with_the_records_of_several_segments() -> None:
    """Those of before, back after a power failure, would have the log cut where it agrees with the leader's."""
    log = filled(MemoryStorage(), 2)
    log.roll()
    log.append(block(3), 2)
    assert f"{DIRECTORY}/leader-epoch-checkpoint" in log.files_to_sync()
