"""Tests that headrace can read the record batches of kafka-python and aiokafka, and that they can read headrace's."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.client.accumulator import concatenate, estimate_bytes
from headrace_broker.records.batch import read_header
from headrace_broker.records.builder import build_batch, split
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression, compress, decompress
from headrace_broker.records.reader import read_columns
from support.examples import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses a deprecated function to load its schemas
    from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

BYTES = st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3)
RECORD = st.tuples(
    st.none() | BYTES, st.none() | BYTES, st.just([]) | HEADERS, st.integers(min_value=0, max_value=2**42)
)
CODECS = st.sampled_from(list(Compression))
HAS_CODEC = {
    Compression.NONE: True,
    Compression.GZIP: has_gzip(),
    Compression.SNAPPY: has_snappy(),
    Compression.LZ4: has_lz4(),
    Compression.ZSTD: has_zstd(),
}
"""Whether kafka-python supports each codec. The compression library that it needs is perhaps not installed."""
KAFKA_PYTHON_CODECS = st.sampled_from([codec for codec in Compression if HAS_CODEC[codec]])


def columns_of(records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]) -> RecordColumns:
    return RecordColumns(
        keys=[record[0] for record in records],
        values=[record[1] for record in records],
        headers=[record[2] for record in records],
        timestamps=[record[3] for record in records],
    )


def rows(columns: RecordColumns) -> list[tuple[object, ...]]:
    count = len(columns)
    return list(
        zip(
            columns.offsets or [None] * count,
            columns.timestamp_list(),
            columns.keys or [None] * count,
            columns.values,
            columns.headers or [[]] * count,
            strict=True,
        )
    )


def kafka_python_rows(buffer: bytes) -> list[tuple[object, ...]]:
    found = []
    memory = MemoryRecords(buffer)
    while (batch := memory.next_batch()) is not None:
        assert batch.validate_crc()
        found += [
            (record.offset, record.timestamp, record.key, record.value, [tuple(header) for header in record.headers])
            for record in batch
        ]
    return found


def aiokafka_rows(buffer: bytes) -> list[tuple[object, ...]]:
    from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

    found = []
    memory = AiokafkaRecords(buffer)
    while memory.has_next():
        batch = memory.next_batch()
        assert batch.validate_crc()
        found += [
            (record.offset, record.timestamp, record.key, record.value, [tuple(header) for header in record.headers])
            for record in batch
        ]
    return found


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=30), CODECS, st.integers(min_value=0, max_value=2**40))
def test_kafka_python_and_aiokafka_and_headrace_read_the_same_records_from_a_batch(records, codec, base_offset) -> None:
    columns = columns_of(records)
    batch = bytes(build_batch(columns, compression=codec, base_offset=base_offset, partition_leader_epoch=4))
    expected = [
        (base_offset + index, timestamp, key, value, headers)
        for index, (key, value, headers, timestamp) in enumerate(records)
    ]
    assert rows(read_columns(batch, base_offset)) == expected
    if HAS_CODEC[codec]:
        assert kafka_python_rows(batch) == expected
    assert aiokafka_rows(batch) == expected


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(BYTES, min_size=1, max_size=200), CODECS, st.integers(min_value=0, max_value=2**42))
def test_fast_and_general_batch_builders_write_the_same_bytes_for_records_without_keys_and_headers(
    values, codec, timestamp
) -> None:
    fast = build_batch(RecordColumns(values=list(values), timestamps=timestamp), compression=codec)
    general = build_batch(
        RecordColumns(values=list(values), keys=[None] * len(values), timestamps=[timestamp] * len(values)),
        compression=codec,
    )
    assert fast == general
    columns = read_columns(fast)
    assert columns.values == values
    assert columns.keys is None
    assert columns.headers is None
    assert columns.timestamps == timestamp
    assert columns.offsets == range(len(values))


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193, 20_000])
def test_offset_deltas_of_every_varint_size_are_read_by_aiokafka(count: int) -> None:
    values: list[bytes | None] = [b"%d" % index for index in range(count)]
    batch = bytes(build_batch(RecordColumns(values=values, timestamps=5)))
    assert [row[0] for row in aiokafka_rows(batch)] == list(range(count))
    assert [row[3] for row in aiokafka_rows(batch)] == values


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=20), KAFKA_PYTHON_CODECS)
def test_headrace_reads_the_records_of_batches_that_kafka_python_built(records, codec) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for key, value, headers, timestamp in records:
        builder.append(timestamp, key, value, headers)
    builder.close()
    buffer = bytes(builder.buffer())
    assert rows(read_columns(buffer)) == kafka_python_rows(buffer)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=20), CODECS)
def test_headrace_reads_the_records_of_batches_that_aiokafka_built(records, codec) -> None:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for offset, (key, value, headers, timestamp) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    buffer = bytes(builder.build())
    assert rows(read_columns(buffer)) == aiokafka_rows(buffer)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.lists(RECORD, min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_records_of_concatenated_batches_are_read_from_any_start_offset(batches, data) -> None:
    buffer = b""
    expected = []
    for records in batches:
        offset = len(expected)
        buffer += build_batch(columns_of(records), base_offset=offset, compression=data.draw(CODECS))
        expected += [(offset + index, r[3], r[0], r[1], r[2]) for index, r in enumerate(records)]
    start = data.draw(st.integers(min_value=0, max_value=len(expected) + 1))
    columns = read_columns(buffer, start)
    assert rows(columns) == expected[start:]
    assert columns.next_offset == max(len(expected), start)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=40), st.integers(min_value=61, max_value=4000))
def test_split_of_records_into_batches_loses_no_records_and_respects_the_size_limit(records, size_bytes_max) -> None:
    parts = list(split(columns_of(records), size_bytes_max))
    assert [value for part in parts for value in part.values] == [record[1] for record in records]
    for part in parts:
        assert len(part) == 1 or len(build_batch(part)) <= size_bytes_max


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=200_000), CODECS)
def test_data_is_unchanged_after_compression_and_decompression_with_every_codec(data, codec) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=5), CODECS, st.data())
def test_read_of_a_batch_with_corrupt_bytes_succeeds_or_raises_corrupt_batch_error(records, codec, data) -> None:
    from headrace_broker.records.batch import HEADER_SIZE, CorruptBatchError

    batch = build_batch(columns_of(records), compression=codec)
    for _ in range(3):
        index = data.draw(st.integers(min_value=HEADER_SIZE - 4, max_value=len(batch) - 1))
        batch[index] = data.draw(st.integers(min_value=0, max_value=255))
    try:
        columns = read_columns(batch, verify_crc=False, decompressed_size_bytes_max=1 << 20)
    except CorruptBatchError:
        return
    assert len(columns) == read_header(batch).records_count


@settings(max_examples=examples(80))
@given(
    st.lists(RECORD, min_size=1, max_size=80),
    st.sampled_from([b"", b"{", b"{" * 200]),
    st.sampled_from([b"", b"}", b"}" * 9000]),
    st.booleans(),
    st.booleans(),
    CODECS,
)
def test_batch_builder_adds_prefix_and_suffix_to_each_value(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    before: bytes,
    after: bytes,
    plain: bool,
    nulls: bool,
    codec: Compression,
) -> None:
    columns = columns_of(records)
    if not nulls:
        columns.values = [value or b"" for value in columns.values]
    if plain:
        columns.keys, columns.headers, columns.timestamps = None, None, 5
    whole = replace(columns)
    whole.values = [None if value is None else before + value + after for value in columns.values]
    columns.before, columns.after = before, after
    assert columns.whole_values() == whole.values
    assert build_batch(columns, compression=codec) == build_batch(whole, compression=codec)
    batches = [bytes(build_batch(part)) for part in split(columns, 5000)]
    assert [value for batch in batches for value in read_columns(batch).values] == whole.values
    assert all(len(batch) <= 5000 or len(read_columns(batch)) == 1 for batch in batches)
    assert read_columns(build_batch(concatenate([columns, whole]))).values == whole.values * 2
    assert read_columns(build_batch(concatenate([columns, columns]))).values == whole.values * 2
    assert estimate_bytes(columns) >= sum(len(value or b"") for value in whole.values)


@settings(max_examples=examples(80))
@given(st.lists(st.none() | BYTES, min_size=1, max_size=80), HEADERS, st.sampled_from([b"", b"}", b"}" * 9000]))
def test_fast_and_general_batch_builders_write_the_same_bytes_for_headers_that_all_records_share(
    values: list[bytes | None], headers: list[tuple[str, bytes | None]], after: bytes
) -> None:
    count = len(values)
    columns = RecordColumns(values=values, headers=[headers] * count, timestamps=5, after=after)
    with_keys = replace(columns, keys=[None] * count)  # keys, even null, are encoded by the C builder
    assert build_batch(columns) == build_batch(with_keys)
    found = read_columns(build_batch(columns))
    assert (found.headers or [[]] * count) == [headers] * count
    assert found.values == columns.whole_values()
    batches = [build_batch(part) for part in split(columns, 5000)]
    assert [value for batch in batches for value in read_columns(batch).values] == columns.whole_values()
    assert all(len(batch) <= 5000 or len(read_columns(batch)) == 1 for batch in batches)
    assert estimate_bytes(columns) == estimate_bytes(replace(columns, headers=[list(headers) for _ in values]))


@given(
    st.lists(st.sampled_from([[], [("a", b"1")], [("a", b"1"), ("b", None)]]), min_size=1, max_size=20),
    st.integers(0, 20),
)
def test_consecutive_records_with_equal_headers_are_read_with_one_shared_header_list(
    headers: list[list[tuple[str, bytes | None]]], end: int
) -> None:
    """The records before and after the index `end` are in different batches."""
    data = b"".join(
        build_batch(RecordColumns(values=[b"v"] * len(part), headers=part, timestamps=5))
        for part in (headers[:end], headers[end:])
        if part
    )
    found = read_columns(data).headers
    assert (found or [[]] * len(headers)) == headers
    for left, right in pairwise(found or ()):
        assert (left is right) == (left == right)
