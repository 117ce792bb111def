"""Property test of opening a log with random checkpoints, and with missing or corrupt files as after a crash."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
from support.examples import examples

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
FIRST = 10
VALUES = [b"value %d" % number for number in range(70)]


def create_files() -> dict[str, bytes]:
    storage = MemoryStorage()
    log = PartitionLog.open(storage, DIRECTORY, "t", 0, CONFIG, NOW, log_start_offset=FIRST)
    for number in range(FIRST, len(VALUES), 3):
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
        columns = RecordColumns(values=list(VALUES[number : number + 3]), timestamps=NOW + number)
        log.append_as_leader(build_batch(columns, **producer), leader_epoch=number // 20, now_ms=NOW)
    log.release()
    return {path: bytes(data) for path, data in storage._files.items()}


FILES = create_files()
BASES = sorted(int(path[-24:-4]) for path in FILES if path.endswith(".log"))
OFFSETS = st.integers(-3, len(VALUES) + 20)


@pytest.fixture(autouse=True)
def _without_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def found_in(log: PartitionLog) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = b"".join(log.read(offset, 500, upper_bound_offset=log.log_end_offset).buffers)
        columns = read_columns(data, offset)
        if not columns.offsets:
            break  # no segment has a record at or after this offset
        assert columns.offsets[0] >= offset
        found.update(zip(columns.offsets, columns.values, strict=True))
        offset = columns.offsets[-1] + 1
    return found


@settings(max_examples=examples(200), deadline=None)
@given(
    recovery_point=OFFSETS,
    high_watermark=OFFSETS,
    log_start_offset=OFFSETS,
    missing=st.sets(st.sampled_from(sorted(FILES))),
    corruption=st.tuples(st.sampled_from(BASES), st.integers(0, 700), st.booleans()),
    may_have_gaps=st.booleans(),
    was_closed_cleanly=st.booleans(),
)
def test_log_can_be_opened_with_any_checkpoints_and_with_missing_or_corrupt_files(
    recovery_point: int,
    high_watermark: int,
    log_start_offset: int,
    missing: set[str],
    corruption: tuple[int, int, bool],
    may_have_gaps: bool,
    was_closed_cleanly: bool,
) -> None:
    storage = MemoryStorage()
    storage.makedirs(DIRECTORY)
    storage._files = {path: bytearray(data) for path, data in FILES.items() if path not in missing}
    base, size, is_zeroed = corruption
    path = f"{DIRECTORY}/{base:020d}.log"
    is_corrupt = base >= recovery_point and path not in missing  # a crash corrupts only unsynced records
    if is_corrupt:
        lost_bytes = len(storage._files[path][size:])
        storage._files[path][size:] = bytes(lost_bytes) if is_zeroed else b""

    def reopened(recovery_point: int, high_watermark: int, log_start_offset: int) -> PartitionLog:
        return PartitionLog.open(
            storage,
            DIRECTORY,
            "t",
            0,
            CONFIG,
            NOW,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            may_have_gaps=may_have_gaps,
            was_closed_cleanly=was_closed_cleanly and not is_corrupt,
        )

    log = reopened(recovery_point, high_watermark, log_start_offset)
    assert log_start_offset <= log.log_start_offset <= log.high_watermark <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    found = found_in(log)
    assert all(VALUES[offset] == value for offset, value in found.items())
    assert all(log.epoch_for_offset(offset) == batch_start(offset) // 20 for offset in found)
    before = (log.log_start_offset, log.log_end_offset, log.high_watermark)
    log.release()
    log = reopened(log.recovery_point, log.high_watermark, log.log_start_offset)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == before
    assert found_in(log) == found
    batch = build_batch(RecordColumns(values=[b"next"], timestamps=NOW))
    assert log.append_as_leader(batch, leader_epoch=9, now_ms=NOW).base_offset == before[1]
    assert found_in(log) == {**found, before[1]: b"next"}


def batch_start(offset: int) -> int:
    return FIRST + (offset - FIRST) // 3 * 3
