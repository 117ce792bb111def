"""Records that somebody changes while the node is down, below what recovery would look at: found by the file's time."""

from __future__ import annotations

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


def written(directory: Path) -> list[Path]:
    """Several segments of records, all closed in good order; returns the files, oldest first."""
    manager = opened(directory, has_others=True)
    log = manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(16))
    for number in range(RECORDS):
        batch = build_batch(RecordColumns(values=[b"value"], timestamps=NOW + number))
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    paths = [Path(segment.path(".log")) for segment in log.segments]
    assert len(paths) == 3
    manager.close(now_ms=NOW)
    return paths


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def later(path: Path, than: Path) -> None:
    """Clocks of file systems tick every few milliseconds: a test is quicker than that."""
    time_ns = max(path.stat().st_mtime_ns, than.stat().st_mtime_ns + 1)
    os.utime(path, ns=(time_ns, time_ns))


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", [flip, cut])
def test_a_changed_segment_is_checked_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], is_clean: bool
) -> None:
    paths = written(tmp_path)
    last_word = tmp_path / (CLEAN_SHUTDOWN_FILE if is_clean else "recovery-point-offset-checkpoint")
    damage(paths[1])
    later(paths[1], last_word)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    manager = opened(tmp_path, has_others=True)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset < int(paths[2].stem)
    assert f"Checking {paths[1]}: it was written to after this node last noted what is safe" in caplog.text
    assert str(paths[1]) in caplog.text.partition("Cutting ")[2] or f"{tmp_path}/t-0: offsets" in caplog.text
    assert manager.is_damaged == is_clean  # after a crash nothing is taken for whole in any case
    manager.close(now_ms=NOW)


@pytest.mark.parametrize("has_others", [True, False])
def test_what_is_sound_stays_and_a_lone_copy_is_left_alone(tmp_path: Path, has_others: bool) -> None:
    """Cut at the damage, an only copy would lose what is sound behind it."""
    paths = written(tmp_path)
    if not has_others:
        flip(paths[1])
    later(paths[1], tmp_path / CLEAN_SHUTDOWN_FILE)
    manager = opened(tmp_path, has_others=has_others)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset == RECORDS
    assert not manager.is_damaged
    manager.close(now_ms=NOW)


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_nobody_changed_is_not_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool) -> None:
    written(tmp_path)
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    manager = opened(tmp_path, has_others=True)
    assert "Checking" not in caplog.text
    manager.close(now_ms=NOW)
