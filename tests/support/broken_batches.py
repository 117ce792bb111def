"""Builds record batches from raw bytes: valid batches, and batches with one defect each."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from headrace_broker.records.batch import CRC_OFFSET, HEADER, HEADER_SIZE, OVERHEAD_SIZE, compute_crc
from headrace_broker.records.compression import Buffer, Compression, compress
from headrace_broker.records.varint import encode_varint


def record(
    offset_delta: int,
    value: bytes = b"a value of the record",
    *,
    key: bytes | None = b"key",
    length: int | None = None,
    headers: bytes = b"\0",
) -> bytes:
    """Encode one record. `length` replaces its real length, and `headers` are the encoded headers with their count."""
    encoded_key = encode_varint(-1) if key is None else encode_varint(len(key)) + key
    body = b"\0\0" + encode_varint(offset_delta) + encoded_key + encode_varint(len(value)) + value + headers
    return encode_varint(len(body) if length is None else length) + body


def records(count: int, value: bytes = b"a value of the record") -> bytes:
    """Encode `count` valid records."""
    return b"".join(record(index, value) for index in range(count))


def batch_of_payload(payload: Buffer, count: int, codec: int, *, timestamp: int | None = None) -> bytearray:
    """Build a batch with a correct CRC from `payload`, which must already be compressed."""
    timestamp = int(time.time() * 1000) if timestamp is None else timestamp
    batch = bytearray(HEADER_SIZE) + payload
    HEADER.pack_into(
        batch, 0, 0, len(batch) - OVERHEAD_SIZE, -1, 2, 0, codec, count - 1, timestamp, timestamp, -1, -1, -1, count
    )
    struct.pack_into(">I", batch, CRC_OFFSET, compute_crc(batch, 0, len(batch)))
    return batch


def compressed_batch(data: bytes, count: int, codec: int) -> bytearray:
    """Build a batch that declares `count` records, and contains `data` as its records."""
    return batch_of_payload(compress(codec, data), count, codec)


def broken_compressed_batches(
    codec: Compression, value: bytes = b"a value of the record"
) -> Iterator[tuple[str, bytearray]]:
    """Yield (defect, batch) for each defect that a compressed batch can have."""
    data = records(3, value)
    payload = bytes(compress(codec, data))
    yield "garbage", batch_of_payload(b"garbage" * 20, 3, codec)
    yield "truncated", batch_of_payload(payload[:-5], 3, codec)
    yield "half", batch_of_payload(payload[: len(payload) // 2], 3, codec)
    yield "bytes after the compressed data", batch_of_payload(payload + b"abc", 3, codec)
    yield "no data", batch_of_payload(bytes(compress(codec, b"")), 1, codec)
    for defect, broken in broken_records(value):
        yield defect, compressed_batch(broken, 3, codec)


def broken_records(value: bytes = b"a value of the record") -> Iterator[tuple[str, bytes]]:
    """Yield (defect, data) for each defect of the records of a batch with three records."""
    first, second, third = (record(index, value) for index in range(3))
    size = len(value) + 30
    yield "too few records", first + second
    yield "too many records", first + second + third + record(3, value)
    yield "bytes after the last record", first + second + third + b"abc"
    yield "offset delta", first + record(5, value) + third
    yield "length too small", first + record(1, value, length=len(value)) + third
    yield "length too large", first + record(1, value, length=size) + third
    yield "length beyond the end", first + second + record(2, value, length=10 * size)
    yield "negative length", first + record(1, value, length=-5) + third
    yield "negative number of headers", first + record(1, value, headers=encode_varint(-1)) + third
    yield "more headers than bytes", first + second + record(2, value, headers=encode_varint(1 << 30))
    yield "header without a name", first + record(1, value, headers=b"\x02\x01\x00") + third
    yield "value beyond the end", first + second + encode_varint(10) + b"\0\0\4\1" + encode_varint(1 << 20) + b"abc"
    yield "endless varint", first + second + b"\xff" * 40
    yield "truncated record", (first + second + third)[:-3]
