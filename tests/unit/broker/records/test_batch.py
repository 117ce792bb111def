"""Tests of batch headers, the checksum, batch iteration, compression and control batches."""

from __future__ import annotations

import pytest

from headrace_broker.records import builder
from headrace_broker.records.batch import (
    CorruptBatchError,
    iter_batches,
    patch_offset_and_epoch,
    patch_timestamps,
    read_header,
    verify_crc,
)
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression, CompressionError, compress, decompress
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value, parse_control_key
from headrace_broker.records.reader import read_batch, read_columns


def batch_of(*values: bytes, **options: int) -> bytearray:
    return build_batch(RecordColumns(values=list(values), timestamps=100), **options)


def test_record_batch_header_has_the_fields_of_kafkas_protocol_guide() -> None:
    batch = batch_of(
        b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=5, partition_leader_epoch=3, base_offset=9
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (9, 10, 11)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 5, 6)
    assert header.size_bytes == len(batch)
    assert header.magic == 2
    assert header.partition_leader_epoch == 3
    assert header.records_count == 2
    assert not header.is_control
    assert not header.is_transactional


def test_last_sequence_of_batch_wraps_at_two_to_the_31() -> None:
    header = read_header(batch_of(b"a", b"b", b"c", producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_base_offset_and_leader_epoch_are_not_covered_by_crc() -> None:
    batch = batch_of(b"a")
    patch_offset_and_epoch(batch, 0, 12345, 6)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    assert (header.base_offset, header.partition_leader_epoch) == (12345, 6)


def test_log_append_time_updates_crc_and_every_timestamp() -> None:
    batch = build_batch(RecordColumns(values=[b"a", b"b"], timestamps=[5, 9]))
    patch_timestamps(batch, 0, read_header(batch), timestamp_type=1, max_timestamp=777)
    columns = read_columns(batch)
    assert columns.timestamps == 777
    assert columns.timestamp_type == 1


def test_crc_detects_every_flipped_bit() -> None:
    batch = batch_of(b"some value")
    for index in range(17, len(batch)):
        batch[index] ^= 0x10
        with pytest.raises(CorruptBatchError, match="CRC"):
            verify_crc(batch, 0, read_header(batch))
        batch[index] ^= 0x10


def test_function_iter_batches_ignores_an_incomplete_batch_and_rejects_an_invalid_batch() -> None:
    first, second = batch_of(b"a"), batch_of(b"b", base_offset=1)
    complete = bytes(first + second)
    assert [position for position, _ in iter_batches(complete)] == [0, len(first)]
    for size in range(len(first), len(complete)):
        assert [position for position, _ in iter_batches(complete[:size])] == [0]
    broken = bytearray(complete)
    broken[len(first) + 16] = 1
    with pytest.raises(CorruptBatchError, match="magic 1") as raised:
        list(iter_batches(broken))
    assert raised.value.position == len(first)
    broken = bytearray(complete)
    broken[8:12] = (48).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="smaller than a batch header"):
        list(iter_batches(broken))


def test_record_batch_with_an_incomplete_header_is_rejected() -> None:
    with pytest.raises(CorruptBatchError, match="only 60 bytes are left in the buffer"):
        read_header(bytes(60))


@pytest.mark.parametrize("timestamps", [None, []])
def test_record_batch_cannot_be_built_without_timestamps(timestamps: list[int] | None) -> None:
    values: list[bytes | None] = [b"a"] if timestamps is None else []
    with pytest.raises(ValueError, match=r"timestamps|at least one"):
        build_batch(RecordColumns(values=values, timestamps=timestamps))


def test_control_batches_contribute_no_records_but_advance_the_next_offset() -> None:
    marker = build_control_batch(
        ControlType.COMMIT, end_transaction_value(3), timestamp=5, base_offset=1, producer_id=4, producer_epoch=0
    )
    buffer = batch_of(b"a") + marker + batch_of(b"b", base_offset=2)
    columns = read_columns(buffer)
    assert columns.values == [b"a", b"b"]
    assert columns.offsets == [0, 2]
    assert columns.next_offset == 3
    assert read_columns(buffer[: len(batch_of(b"a")) + len(marker)]).next_offset == 2
    only_marker = read_columns(marker, 1)
    assert (len(only_marker), only_marker.next_offset) == (0, 2)
    control = read_batch(memoryview(marker), 0, read_header(marker))
    assert control.keys is not None
    assert parse_control_key(control.keys[0]) == ControlType.COMMIT


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_decompression_fails_above_the_size_limit(codec: Compression) -> None:
    packed = compress(codec, bytes(3_000_000))
    assert len(decompress(codec, packed, 3_000_000)) == 3_000_000
    with pytest.raises(CompressionError, match="exceed 2999999 bytes"):
        decompress(codec, packed, 2_999_999)
    with pytest.raises(CompressionError):
        decompress(codec, bytes(packed)[:-3])
    with pytest.raises(CompressionError):
        decompress(codec, b"")


def test_unknown_compression_codec_is_rejected() -> None:
    batch = batch_of(b"a")
    batch[22] = 5
    with pytest.raises(CorruptBatchError, match="codec 5 is unknown"):
        read_columns(batch, verify_crc=False)


def test_snappy_is_written_with_xerial_framing_and_read_with_and_without_this_framing() -> None:
    import cramjam

    data = bytes(range(256)) * 300
    packed = bytes(compress(Compression.SNAPPY, data))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert decompress(Compression.SNAPPY, packed) == data
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


@pytest.mark.parametrize("count", [0, 1, 3, -1, 2**31 - 1])
def test_record_batch_with_a_wrong_record_count_is_rejected(count: int) -> None:
    batch = batch_of(b"a", b"b")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatchError):
        read_batch(memoryview(batch), 0, read_header(batch))


def test_encoding_tables_are_not_created_for_a_suffix_that_differs_between_batches() -> None:
    misses = builder._tables.cache_info().misses
    for number in range(100):
        columns = RecordColumns(values=[b"value"], timestamps=5, after=b"%d" % number)
        assert read_columns(build_batch(columns)).values == [b"value%d" % number]
    assert builder._tables.cache_info().misses <= misses + 3  # one for each size of the suffix
