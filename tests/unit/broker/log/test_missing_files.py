"""Tests of a running broker after its files have been deleted or truncated.

The broker either recreates a file, or raises an error that names the file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_broker.log.checkpoints import HIGH_WATERMARK_FILE
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.storage import DiskStorage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, retention_bytes=700, file_delete_delay_ms=0)


def append(log: PartitionLog) -> None:
    batch = build_batch(RecordColumns(values=[b"value"], timestamps=NOW + log.log_end_offset))
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(log.log_end_offset)


def read_all(log: PartitionLog) -> None:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        columns = read_columns(b"".join(log.read(offset, 300).buffers), offset)
        assert columns.offsets
        assert columns.offsets[0] == offset
        offset = columns.offsets[-1] + 1


def create_log(directory: Path) -> PartitionLog:
    """Create a log with 30 records in several segments. The files of at most two segments stay open."""
    path = str(directory / "t-0")
    storage = DiskStorage()
    log = PartitionLog.open(storage, path, "t", 0, CONFIG, NOW, open_segments=OpenSegments(2), topic_id=bytes(16))
    for _ in range(30):
        append(log)
    assert len(log.segments) > 3
    return log


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


OPERATIONS: dict[str, Callable[[PartitionLog], object]] = {
    "read": read_all,
    "append": append,
    "offset for timestamp": lambda log: log.offset_for_timestamp(NOW + 15),
    "max timestamp offset": lambda log: log.max_timestamp_offset(),
    "retention": lambda log: log.apply_retention(NOW),
    "roll": lambda log: log.roll(NOW),
    "flush": lambda log: log.flush(NOW),
    "truncate": lambda log: log.truncate_to(12, NOW),
    "close": lambda log: log.close(clean=True, now_ms=NOW),
}


def error_of(operation: str, log: PartitionLog) -> ApiError | None:
    try:
        OPERATIONS[operation](log)
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "corrupt", [Path.unlink, truncate_file, replace_by_directory], ids=["deleted", "truncated", "directory"]
)
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_log_operation_recreates_a_missing_or_corrupt_file_or_names_the_file_in_the_error(
    tmp_path: Path, suffix: str, corrupt, operation: str
) -> None:
    log = create_log(tmp_path)
    for segment in log.segments:
        segment.release()
    for path in (tmp_path / "t-0").glob(f"*{suffix}"):
        corrupt(path)
    error = error_of(operation, log)
    if error is not None:
        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert str(tmp_path / "t-0" / "0") in error.message
        assert suffix in error.message


@pytest.mark.parametrize("operation", OPERATIONS)
def test_missing_partition_directory_is_named_in_the_error(tmp_path: Path, operation: str) -> None:
    log = create_log(tmp_path)
    shutil.rmtree(tmp_path / "t-0")
    error = error_of(operation, log)
    if error is not None:
        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert str(tmp_path / "t-0") in error.message


def test_missing_segment_file_is_not_replaced_by_an_empty_file(tmp_path: Path) -> None:
    """If the broker created an empty file, the next start would not detect that records are missing."""
    log = create_log(tmp_path)
    for segment in log.segments:
        segment.release()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.unlink()
    with pytest.raises(ApiError, match=rf"cannot read the log \({path}\): No such file"):
        log.read(0, 100)
    assert not path.exists()
    assert log.offline_reason is not None


def test_maintenance_continues_with_other_logs_after_an_error_in_one_log(tmp_path: Path) -> None:
    manager = LogManager(DiskStorage(), [str(tmp_path)], retention_check_interval_ms=0)
    manager.open_directories()
    logs = [manager.get_or_create("t", partition, CONFIG, NOW) for partition in range(3)]
    for _ in range(30):
        for log in logs:
            append(log)
    for segment in logs[0].segments:
        segment.release()
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    for elapsed_ms in range(3):
        manager.maintain(NOW + elapsed_ms)
    assert logs[1].log_start_offset > 0
    assert logs[2].log_start_offset > 0


def test_missing_checkpoint_file_is_rewritten(tmp_path: Path) -> None:
    manager = LogManager(DiskStorage(), [str(tmp_path)])
    manager.open_directories()
    append(manager.get_or_create("t", 0, CONFIG, NOW))
    for _ in range(2):
        manager.checkpoints.write(HIGH_WATERMARK_FILE)
        path = tmp_path / "replication-offset-checkpoint"
        assert path.read_bytes() == b"0\n1\nt 0 1\n"
        path.unlink()
