from __future__ import annotations

import pytest

from headrace_broker.client.errors import CorruptRecordsError
from headrace_broker.client.fetch_core import SPAN_RECORDS_MIN, FetchCore
from headrace_broker.client.fetched import FetchedBatch, FetchedChunk
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value

HALF = SPAN_RECORDS_MIN // 2


def batch_at(offset: int, count: int) -> bytes:
    values: list[bytes | None] = [b"%d" % (offset + index) for index in range(count)]
    return bytes(build_batch(RecordColumns(values, timestamps=1), base_offset=offset))


def fetched(records: bytes, from_offset: int = 0) -> tuple[FetchedChunk, list[tuple[tuple[str, int], int]]]:
    """A chunk as the reader makes it, and what it told of broken records."""
    core = FetchCore(partition_bytes_max=1000, backoff_ms=lambda attempts: 100)
    core.assign([("t", 0)])
    core.seek(("t", 0), from_offset)
    [asked] = core.plan(0, lambda topic, partition: (1, 5), lambda node: True)[0][1]
    core.receive(1, asked, memoryview(records), high_watermark=100)
    chunk = core.take()
    assert chunk is not None
    told: list[tuple[tuple[str, int], int]] = []
    return FetchedChunk(chunk, verify_crc=True, on_corrupt=lambda *where: told.append(where)), told


def taken(chunk: FetchedChunk, limit: int | None = None) -> list[FetchedBatch]:
    batches = []
    while (batch := chunk.take(limit)) is not None:
        assert chunk.position == batch.next_offset
        batches.append(batch)
    return batches


def test_batches_are_taken_some_thousand_records_at_a_time() -> None:
    chunk, _ = fetched(b"".join(batch_at(offset, HALF) for offset in range(0, 5 * HALF, HALF)), from_offset=3)
    batches = taken(chunk)
    assert [len(batch) for batch in batches] == [2 * HALF - 3, 2 * HALF, HALF]
    assert [batch.next_offset for batch in batches] == [2 * HALF, 4 * HALF, 5 * HALF]
    assert [value for batch in batches for value in batch.columns.values] == [b"%d" % n for n in range(3, 5 * HALF)]


def test_no_more_than_asked_for() -> None:
    chunk, _ = fetched(batch_at(0, 2 * HALF) + batch_at(2 * HALF, 10))
    batches = taken(chunk, 2 * HALF - 4)
    assert [len(batch) for batch in batches] == [2 * HALF - 4, 4, 10]
    assert [batch.next_offset for batch in batches] == [2 * HALF - 4, 2 * HALF, 2 * HALF + 10]


def test_control_batches_at_the_end_are_passed() -> None:
    end = 2 * HALF
    marker = build_control_batch(
        ControlType.COMMIT, end_transaction_value(0), timestamp=1, base_offset=end, producer_id=4
    )
    chunk, _ = fetched(batch_at(0, end) + bytes(marker))
    assert [batch.next_offset for batch in taken(chunk)] == [end]
    assert chunk.position == chunk.next_offset == end + 1


def test_what_comes_before_broken_records_is_not_lost() -> None:
    broken = bytearray(batch_at(2 * HALF, 5))
    broken[-1] ^= 1
    chunk, told = fetched(batch_at(0, 2 * HALF) + bytes(broken) + batch_at(2 * HALF + 5, 1))
    batch = chunk.take()
    assert batch is not None
    assert (len(batch), batch.next_offset) == (2 * HALF, 2 * HALF)
    with pytest.raises(CorruptRecordsError, match=f"t-0 from offset {2 * HALF}: .*CRC"):
        chunk.take()
    assert told == [(("t", 0), 2 * HALF)]
    assert chunk.take() is None
