"""Tests that a node recovers segments that another program modified while the node was down.

The node compares the modification times of the segments with the time of its last checkpoint or shutdown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_broker.log.checkpoints import CLEAN_SHUTDOWN_FILE
from headrace_broker.log.config import LogConfig
from headrace_broker.log.manager import LogManager
from headrace_broker.log.storage import DiskStorage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=300)
RECORDS = 12


def opened(directory: Path, *, has_others: bool) -> LogManager:
    manager = LogManager(DiskStorage(), [str(directory)])
    manager.open_directories()
    manager.load(lambda topic: CONFIG, NOW, has_other_replicas=lambda topic, partition: has_others)
    return manager


def write_segments(directory: Path) -> list[Path]:
    """Write three segments of records and shut down cleanly. Return the `.log` files, oldest first."""
    manager = opened(directory, has_others=True)
    log = manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(16))
    for number in range(RECORDS):
        batch = build_batch(RecordColumns(values=[b"value"], timestamps=NOW + number))
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    paths = [Path(segment.path(".log")) for segment in log.segments]
    assert len(paths) == 3
    manager.close(now_ms=NOW)
    return paths


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def set_modified_after(path: Path, than: Path) -> None:
    """Make the modification time of `path` later than the modification time of `than`.

    The times differ even if both files were written within the file system's timestamp resolution.
    """
    time_ns = max(path.stat().st_mtime_ns, than.stat().st_mtime_ns + 1)
    os.utime(path, ns=(time_ns, time_ns))


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("corrupt", [flip_bit, truncate_file])
def test_segment_that_was_modified_while_the_node_was_down_is_recovered_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, corrupt: Callable[[Path], None], is_clean: bool
) -> None:
    paths = write_segments(tmp_path)
    checkpoint = tmp_path / (CLEAN_SHUTDOWN_FILE if is_clean else "recovery-point-offset-checkpoint")
    corrupt(paths[1])
    set_modified_after(paths[1], checkpoint)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    manager = opened(tmp_path, has_others=True)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset < int(paths[2].stem)
    assert (
        f"Recovering segment {paths[1]}: the file was modified after this node's last checkpoint or shutdown"
        in caplog.text
    )
    assert str(paths[1]) in caplog.text.partition("Truncating ")[2] or f"{tmp_path}/t-0: offsets" in caplog.text
    assert manager.is_corrupt == is_clean  # an incomplete log is normal after a crash
    manager.close(now_ms=NOW)


@pytest.mark.parametrize("has_others", [True, False])
def test_log_keeps_all_records_if_a_modified_segment_is_valid_or_no_other_replica_exists(
    tmp_path: Path, has_others: bool
) -> None:
    """If there is no other replica, recovery does not truncate the log at a corrupt batch.

    The truncation would delete the valid records after the corrupt batch.
    """
    paths = write_segments(tmp_path)
    if not has_others:
        flip_bit(paths[1])
    set_modified_after(paths[1], tmp_path / CLEAN_SHUTDOWN_FILE)
    manager = opened(tmp_path, has_others=has_others)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset == RECORDS
    assert not manager.is_corrupt
    manager.close(now_ms=NOW)


@pytest.mark.parametrize("is_clean", [True, False])
def test_segments_that_were_not_modified_are_not_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    write_segments(tmp_path)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    manager = opened(tmp_path, has_others=True)
    assert "Recovering" not in caplog.text
    manager.close(now_ms=NOW)


@pytest.mark.parametrize(("segment", "level"), [(0, logging.ERROR), (1, logging.ERROR), (2, logging.WARNING)])
def test_incomplete_last_batch_after_a_crash_is_logged_as_warning_and_other_corruption_as_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, segment: int, level: int
) -> None:
    paths = write_segments(tmp_path)
    paths[segment].write_bytes(paths[segment].read_bytes()[:-1])
    for name in (CLEAN_SHUTDOWN_FILE, "recovery-point-offset-checkpoint"):
        (tmp_path / name).unlink()
    manager = opened(tmp_path, has_others=True)
    assert {record.levelno for record in caplog.records if record.message.startswith("Truncating")} == {level}
    manager.close(now_ms=NOW)
