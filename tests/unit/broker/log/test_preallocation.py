"""Tests of preallocated segments: the active file is longer than its records, and is trimmed when it is closed."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import DiskStorage
from headrace_broker.records.batch import iter_batches
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation.disk import SimulatedDisk

NOW = 1_700_000_000_000
CONFIG = LogConfig(preallocate=True, segment_bytes=8 * 1024 * 1024)


def opened(directory: Path, config: LogConfig = CONFIG, **options: bool) -> PartitionLog:
    return PartitionLog.open(DiskStorage(), str(directory), "t", 0, config, NOW, may_have_gaps=False, **options)


def append(log: PartitionLog, value: bytes) -> None:
    batch = build_batch(RecordColumns(values=[value], timestamps=NOW))
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)


def file_of(log: PartitionLog, base_offset: int = 0) -> Path:
    return Path(log.directory) / f"{base_offset:020d}.log"


def size_of(path: Path) -> int:
    return path.stat().st_size


def test_appends_do_not_change_size_of_preallocated_file(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    sizes = set()
    for _ in range(100):
        append(log, b"x" * 1000)
        sizes.add(size_of(file_of(log)))
    assert len(sizes) == 1
    assert sizes.pop() > log.size_bytes
    for _ in range(6):
        append(log, bytes(900_000))  # the batches exceed the preallocated size
        assert size_of(file_of(log)) >= log.size_bytes
    assert size_of(file_of(log)) > log.size_bytes > 5_000_000


def test_rolled_and_closed_segments_are_trimmed(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    append(log, b"one")
    log.roll(NOW)
    append(log, b"two")
    assert size_of(file_of(log)) == log.segments[0].size_bytes
    assert size_of(file_of(log, 1)) > log.segments[1].size_bytes
    log.close(clean=True, now_ms=NOW)
    assert size_of(file_of(log, 1)) == log.segments[1].size_bytes
    reopened = opened(tmp_path / "t-0", was_closed_cleanly=True)
    assert reopened.log_end_offset == 2
    assert size_of(file_of(log, 1)) > reopened.segments[1].size_bytes  # the active segment is preallocated again


def test_trailing_zeros_after_crash_are_not_reported_as_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path / "t-0")
    append(log, b"one")
    log.roll(NOW)
    append(log, b"two")
    with file_of(log).open("ab") as file:  # simulate a crash before the trim
        file.write(bytes(10_000))
    log.release()
    with caplog.at_level(logging.WARNING):
        reopened = opened(tmp_path / "t-0")
    assert [segment.base_offset for segment in reopened.segments] == [0, 1]
    assert reopened.log_end_offset == 2
    assert not caplog.records
    append(reopened, b"three")
    data = file_of(reopened, 1).read_bytes()[: reopened.segments[1].size_bytes]
    assert [header.base_offset for _, header in iter_batches(data)] == [1, 2]


def test_log_is_trimmed_again_if_a_power_failure_undid_the_trim_at_shutdown(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    append(log, b"one")
    log.close(clean=True, now_ms=NOW)
    with file_of(log).open("ab") as file:
        file.write(bytes(10_000))
    assert opened(tmp_path / "t-0", was_closed_cleanly=True).log_end_offset == 1


def test_log_is_truncated_where_records_are_missing_before_the_next_segment(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    append(log, b"one")
    valid_bytes = log.size_bytes
    append(log, b"two")
    log.roll(NOW)
    append(log, b"three")
    log.release()
    with file_of(log).open("r+b") as file:
        file.seek(valid_bytes)
        file.write(bytes(size_of(file_of(log)) - valid_bytes))
    assert opened(tmp_path / "t-0").log_end_offset == 1


def test_append_after_truncation_of_preallocated_segment_continues_at_truncation_offset(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    for number in range(5):
        append(log, b"%d" % number)
    log.truncate_to(2, NOW)
    append(log, b"new")
    append(log, b"new")
    assert size_of(file_of(log)) > log.size_bytes
    log.close(clean=True, now_ms=NOW)
    offsets = [header.base_offset for _, header in iter_batches(file_of(log).read_bytes())]
    assert offsets == [0, 1, 2, 3]


def test_segment_file_without_preallocation_has_the_size_of_its_records(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", LogConfig())
    append(log, b"one")
    assert size_of(file_of(log)) == log.size_bytes


def test_opening_an_empty_preallocated_log_does_not_rebuild_leader_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path / "t-0").close(clean=False, now_ms=NOW)
    assert size_of(tmp_path / "t-0" / f"{0:020d}.log") > 0
    assert opened(tmp_path / "t-0").log_end_offset == 0
    assert not caplog.records


@pytest.mark.parametrize("seed", range(8))
def test_trim_of_rolled_segment_survives_power_failure(seed: int) -> None:
    """Recovery does not check segments before the recovery point.

    If the trim were undone, reads would return zeros.
    """
    disk = SimulatedDisk(Random(seed))
    storage = disk.mount()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, CONFIG, NOW)
    append(log, b"one")
    log.flush(NOW)
    log.roll(NOW)
    append(log, b"two")
    log.flush(NOW)
    disk.lose_power()
    log = PartitionLog.open(disk.mount(), "/d/t-0", "t", 0, CONFIG, NOW, recovery_point=2)
    data = b"".join(log.read(0, 1 << 20, upper_bound_offset=2).buffers)
    assert [header.base_offset for _, header in iter_batches(data)] == [0]
