"""Tests of RecordValidator: which batches it accepts, where it checks them, and how much memory it needs."""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import threading
from collections.abc import Iterator

import cramjam
import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.validator import RecordsCheck
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.compression import Compression, compress
from headrace_broker.records.varint import encode_varint
from headrace_broker.server.record_validator import BUFFER_BYTES, INLINE_BYTES, INLINE_BYTES_MIN, RecordValidator
from support.broken_batches import batch_of_payload, broken_compressed_batches, compressed_batch, record, records

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
SIZES = {"on the event loop": 10, "in a buffer": INLINE_BYTES, "as a stream": BUFFER_BYTES}
"""The size of a record's value for each of the three kinds of checks."""


XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
EMPTY_SNAPPY_BLOCK = struct.pack(">i", 1) + b"\0"
SNAPPY_BLOCKS = 2000


@pytest.fixture
def validator() -> Iterator[RecordValidator]:
    validator = RecordValidator()
    yield validator
    validator.close()


def check(validator: RecordValidator, batch: bytearray, config: LogConfig | None = None) -> RecordsCheck:
    """Check a batch as the Produce handler does: on the event loop, or else in a thread."""
    config = config or LogConfig()
    view = memoryview(batch)
    found = validator.check_small(view, config)
    return found if found is not None else asyncio.run(validator.check(view, config))


@pytest.mark.parametrize("size_bytes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("codec", CODECS)
def test_valid_batch_is_accepted(validator: RecordValidator, codec: Compression, size_bytes: int) -> None:
    batch = compressed_batch(records(3, os.urandom(64) * (size_bytes // 64 + 1)), 3, codec)
    assert check(validator, batch) == RecordsCheck()


@pytest.mark.parametrize("size_bytes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("codec", CODECS)
def test_broken_batches_are_rejected(validator: RecordValidator, codec: Compression, size_bytes: int) -> None:
    for defect, batch in broken_compressed_batches(codec, os.urandom(64) * (size_bytes // 64 + 1)):
        error = check(validator, batch).error
        assert error is not None, defect
        assert error.code == ErrorCode.INVALID_RECORD, defect


@pytest.mark.parametrize("size_bytes", SIZES.values(), ids=SIZES)
def test_compacted_topic_requires_keys(validator: RecordValidator, size_bytes: int) -> None:
    value = bytes(size_bytes)
    batch = compressed_batch(record(0, value) + record(1, value, key=None), 2, Compression.LZ4)
    compacted = check(validator, batch, LogConfig(cleanup_compact=True))
    assert compacted.error is not None
    assert compacted.error.code == ErrorCode.INVALID_RECORD
    assert compacted.includes_keys
    assert check(validator, batch) == RecordsCheck()


@pytest.mark.parametrize("codec", CODECS)
def test_only_small_batches_are_checked_on_the_event_loop(validator: RecordValidator, codec: Compression) -> None:
    small = memoryview(compressed_batch(record(0, os.urandom(INLINE_BYTES // 2)), 1, codec))
    large = memoryview(compressed_batch(record(0, os.urandom(INLINE_BYTES // 2) * 3), 1, codec))
    for _ in range(2):
        assert validator.check_small(small, LogConfig()) == RecordsCheck()
        assert validator.check_small(large, LogConfig()) is None


def test_batches_are_checked_on_the_event_loop_again_after_a_batch_with_a_high_compression_ratio(
    validator: RecordValidator,
) -> None:
    """The event loop does not decompress a batch if the ratio of the last batch suggests that it is too large."""
    small = compressed_batch(record(0, os.urandom(INLINE_BYTES // 2)), 1, Compression.ZSTD)
    check(validator, compressed_batch(record(0, bytes(INLINE_BYTES * 2)), 1, Compression.ZSTD))
    assert validator.check_small(memoryview(small), LogConfig()) is None
    check(validator, small)
    assert validator.check_small(memoryview(small), LogConfig()) == RecordsCheck()


def test_batch_that_decompresses_to_nothing_does_not_let_the_event_loop_check_large_batches(
    validator: RecordValidator,
) -> None:
    empty_blocks = XERIAL_HEADER + EMPTY_SNAPPY_BLOCK * (2 * SNAPPY_BLOCKS)
    assert check(validator, batch_of_payload(empty_blocks, 1, Compression.SNAPPY)).error is not None
    large = compressed_batch(record(0, os.urandom(INLINE_BYTES)), 1, Compression.SNAPPY)
    assert validator.check_small(memoryview(large), LogConfig()) is None


@pytest.mark.parametrize(("size_bytes", "count_max"), [(1, INLINE_BYTES // INLINE_BYTES_MIN), (INLINE_BYTES // 4, 3)])
def test_event_loop_checks_the_batches_of_a_request_only_up_to_a_limit(
    validator: RecordValidator, size_bytes: int, count_max: int
) -> None:
    batch = memoryview(compressed_batch(record(0, os.urandom(size_bytes)), 1, Compression.ZSTD))
    found = validator.check_small_batches([(batch, LogConfig())] * count_max + [(batch, None)])
    assert found == [RecordsCheck()] * count_max + [None]
    assert validator.check_small_batches([(batch, LogConfig())] * (count_max + 1)) is None


def test_event_loop_does_not_check_snappy_data_with_many_blocks(validator: RecordValidator) -> None:
    batch = batch_of_payload(XERIAL_HEADER + EMPTY_SNAPPY_BLOCK * SNAPPY_BLOCKS, 1, Compression.SNAPPY)
    assert validator.check_small(memoryview(batch), LogConfig()) is None


def test_event_loop_does_not_check_a_batch_that_the_c_parser_rejects(validator: RecordValidator) -> None:
    """The parser in Python, which decides in this case, takes much longer."""
    batch = memoryview(compressed_batch(records(3, b"x") + b"\0", 3, Compression.ZSTD))
    assert validator.check_small(batch, LogConfig()) is None
    assert asyncio.run(validator.check(batch, LogConfig())).error is not None


def test_check_of_a_large_batch_ends_when_the_client_has_disconnected(validator: RecordValidator) -> None:
    batch = memoryview(batch_of_zeros(Compression.ZSTD, 1 << 28))
    questions = 0

    def is_wanted() -> bool:
        nonlocal questions
        questions += 1
        return questions < 3

    assert asyncio.run(validator.check(batch, LogConfig(), is_wanted)).error is not None
    assert questions == 3


LZ4_PARTS = compress(Compression.LZ4, records(2, os.urandom(100_000)))


@pytest.mark.parametrize(
    "payload",
    [
        bytes(cramjam.lz4.compress(records(2, os.urandom(100_000)))),
        bytes(LZ4_PARTS) + bytes(compress(Compression.LZ4, records(2, b"x"))),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip" + bytes(LZ4_PARTS),
        bytes(LZ4_PARTS)[:-4],
        b"",
    ],
    ids=["blocks that depend on each other", "two frames", "a skippable frame", "no end mark", "no data"],
)
def test_lz4_data_that_java_consumers_cannot_read_is_rejected(validator: RecordValidator, payload: bytes) -> None:
    error = check(validator, batch_of_payload(payload, 2, Compression.LZ4)).error
    assert error is not None
    assert error.code == ErrorCode.INVALID_RECORD
    assert "lz4" in error.message


def batch_of_zeros(codec: Compression, size_bytes: int) -> bytearray:
    """Build a batch with one record, whose value consists of `size_bytes` zeros."""
    start = b"\0\0\0\1" + encode_varint(size_bytes)
    start = encode_varint(len(start) + size_bytes + 1) + start
    zeros = bytes(1 << 20)
    parts = [start, *[zeros] * (size_bytes >> 20), b"\0"]
    if codec is Compression.SNAPPY:
        return batch_of_payload(compress(codec, b"".join(parts)), 1, codec)
    settings = {"block_linked": False} if codec is Compression.LZ4 else {}
    compressor = getattr(cramjam, codec.name.lower()).Compressor(**settings)
    for part in parts:
        compressor.compress(part)
    return batch_of_payload(bytes(compressor.finish()), 1, codec)


def peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("codec", "size_bytes"), [(Compression.GZIP, 1 << 28), (Compression.LZ4, 1 << 28), (Compression.ZSTD, 1 << 30)]
)
def test_memory_for_a_check_does_not_depend_on_the_decompressed_size(
    validator: RecordValidator, codec: Compression, size_bytes: int
) -> None:
    batch = batch_of_zeros(codec, size_bytes)
    assert len(batch) < 2_000_000
    check(validator, batch_of_zeros(codec, 16 << 20))
    before_bytes = peak_memory_bytes()
    assert check(validator, batch) == RecordsCheck()
    assert peak_memory_bytes() - before_bytes < 64 << 20


def test_compacted_topic_limits_the_decompressed_size(validator: RecordValidator) -> None:
    batch = batch_of_zeros(Compression.ZSTD, 100 << 20)
    error = check(validator, batch, LogConfig(cleanup_compact=True)).error
    assert error is not None
    assert "limit of a compacted topic" in error.message


def test_rejected_stream_leaves_no_thread_and_no_open_file(validator: RecordValidator) -> None:
    check(validator, compressed_batch(record(0, bytes(BUFFER_BYTES)), 1, Compression.ZSTD))  # starts the threads
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    broken = bytes(16) + bytes(32 << 20)
    for codec in CODECS:
        assert check(validator, compressed_batch(broken, 3, codec)).error is not None
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (files, threads)


def test_event_loop_runs_while_a_large_batch_is_checked(validator: RecordValidator) -> None:
    """Without a release of the GIL, the event loop would run no callback until the check ends."""
    batch = batch_of_zeros(Compression.LZ4, 64 << 20)

    async def count_callbacks() -> int:
        checking = asyncio.ensure_future(validator.check(memoryview(batch), LogConfig()))
        callbacks = 0
        while not checking.done():
            await asyncio.sleep(0)
            callbacks += 1
        assert checking.result() == RecordsCheck()
        return callbacks

    assert asyncio.run(count_callbacks()) > 100
