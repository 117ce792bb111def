"""Tests that a corrupt log directory can be opened, and that reads return only records that were written."""

from __future__ import annotations

import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.protocol.errors import ApiError
from headrace_broker.records.batch import CorruptBatchError, iter_batches
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
from support.examples import examples

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
VALUES = [b"value %d" % number for number in range(60)]


def create_files() -> dict[str, bytes]:
    storage = MemoryStorage()
    log = PartitionLog.open(storage, DIRECTORY, "t", 0, CONFIG, NOW, topic_id=bytes(range(16)))
    for number in range(0, len(VALUES), 3):
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
        columns = RecordColumns(values=list(VALUES[number : number + 3]), timestamps=NOW + number)
        log.append_as_leader(build_batch(columns, **producer), leader_epoch=number // 20, now_ms=NOW)
    log.close(clean=True, now_ms=NOW)
    return {path: bytes(data) for path, data in storage._files.items()}


FILES = create_files()
NOT_COVERED_BY_CRC = {
    path: {position + byte for position, _ in iter_batches(content) for byte in (*range(8), *range(12, 16))}
    for path, content in FILES.items()
    if path.endswith(".log")
}
"""For each `.log` file, the positions of the base offsets and leader epochs, which the CRC does not cover."""


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_read_of_a_corrupt_log_returns_only_records_that_were_written(data: st.DataObject) -> None:
    logging.disable(logging.CRITICAL)
    try:
        storage = MemoryStorage()
        storage.makedirs(DIRECTORY)
        storage._files = {path: bytearray(content) for path, content in FILES.items()}
        is_checked = True
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(sorted(storage._files)))
            content = storage._files[path]
            kind = data.draw(st.sampled_from(["truncate", "flip", "grow", "remove"]))
            position = data.draw(st.integers(0, max(len(content) - 1, 0)))
            if kind == "truncate":
                del content[position:]
            elif kind == "flip" and content:
                content[position] ^= data.draw(st.integers(1, 255))
                is_checked = is_checked and not (path.endswith(".log") and position in NOT_COVERED_BY_CRC[path])
            elif kind == "grow":
                content += data.draw(st.binary(max_size=100))
            elif not path.endswith(".log"):
                del storage._files[path]
        clean = data.draw(st.booleans())
        log = PartitionLog.open(storage, DIRECTORY, "t", 0, CONFIG, NOW, was_closed_cleanly=clean)
        log.advance_high_watermark(log.log_end_offset)
        found = read_all(log)
        if is_checked:
            assert all(VALUES[offset] == value for offset, value in found)
            assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
        if not clean:
            assert all(log.log_start_offset <= offset < log.log_end_offset for offset, _ in found)
            log.offset_for_timestamp(NOW + 5)
    finally:
        logging.disable(logging.NOTSET)


def read_all(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            columns = read_columns(b"".join(log.read(offset, 500).buffers), offset)
        except (ApiError, CorruptBatchError):
            break  # a log that was closed cleanly is not checked when it is opened, so the read finds the corrupt batch
        if not len(columns) or columns.offsets is None:
            break
        found += zip(columns.offsets, columns.values, strict=True)
        offset = columns.offsets[-1] + 1
    return found
