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


def fetched_chunk(records: bytes, from_offset: int = 0) -> tuple[FetchedChunk, list[tuple[tuple[str, int], int]]]:
    """Return the chunk that a consumer at position `from_offset` creates for the fetched `records`.

    The second result is the list of the chunk's `on_corrupt` calls.
    """
    core = FetchCore(partition_bytes_max=1000, backoff_ms=lambda attempts: 100)
    core.assign([("t", 0)])
    core.seek(("t", 0), from_offset)
    [requested] = core.plan(0, lambda topic, partition: (1, 5), lambda node: True)[0][1]
    core.receive(1, requested, memoryview(records), high_watermark=100)
    chunk = core.next_chunk()
    assert chunk is not None
    corrupt: list[tuple[tuple[str, int], int]] = []
    return FetchedChunk(chunk, verify_crc=True, on_corrupt=lambda *where: corrupt.append(where)), corrupt


def remaining_batches(chunk: FetchedChunk, limit: int | None = None) -> list[FetchedBatch]:
    batches = []
    while (batch := chunk.next_batch(limit)) is not None:
        assert chunk.position == batch.next_offset
        batches.append(batch)
    return batches


def test_fetched_chunk_is_parsed_a_few_thousand_records_at_a_time() -> None:
    chunk, _ = fetched_chunk(b"".join(batch_at(offset, HALF) for offset in range(0, 5 * HALF, HALF)), from_offset=3)
    batches = remaining_batches(chunk)
    assert [len(batch) for batch in batches] == [2 * HALF - 3, 2 * HALF, HALF]
    assert [batch.next_offset for batch in batches] == [2 * HALF, 4 * HALF, 5 * HALF]
    assert [value for batch in batches for value in batch.columns.values] == [b"%d" % n for n in range(3, 5 * HALF)]


def test_method_next_batch_returns_at_most_the_requested_number_of_records() -> None:
    chunk, _ = fetched_chunk(batch_at(0, 2 * HALF) + batch_at(2 * HALF, 10))
    batches = remaining_batches(chunk, 2 * HALF - 4)
    assert [len(batch) for batch in batches] == [2 * HALF - 4, 4, 10]
    assert [batch.next_offset for batch in batches] == [2 * HALF - 4, 2 * HALF, 2 * HALF + 10]


def test_control_batches_at_the_end_of_a_fetched_chunk_are_skipped() -> None:
    end = 2 * HALF
    marker = build_control_batch(
        ControlType.COMMIT, end_transaction_value(0), timestamp=1, base_offset=end, producer_id=4
    )
    chunk, _ = fetched_chunk(batch_at(0, end) + bytes(marker))
    assert [batch.next_offset for batch in remaining_batches(chunk)] == [end]
    assert chunk.position == chunk.next_offset == end + 1


def test_records_before_corrupt_records_are_returned() -> None:
    broken = bytearray(batch_at(2 * HALF, 5))
    broken[-1] ^= 1
    chunk, corrupt = fetched_chunk(batch_at(0, 2 * HALF) + bytes(broken) + batch_at(2 * HALF + 5, 1))
    batch = chunk.next_batch()
    assert batch is not None
    assert (len(batch), batch.next_offset) == (2 * HALF, 2 * HALF)
    with pytest.raises(CorruptRecordsError, match=f"t-0 at offset {2 * HALF}: .*CRC"):
        chunk.next_batch()
    assert corrupt == [(("t", 0), 2 * HALF)]
    assert chunk.next_batch() is None
