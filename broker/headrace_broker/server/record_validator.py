"""Checks the records of compressed batches before the leader appends them (`headrace.records.validation=strict`).

Without this check, the leader would append a batch that cannot be decompressed, and no consumer could read past it.

- The event loop checks the batches of a request itself, in its own buffer, if they have at most `INLINE_BYTES`
  decompressed bytes together, and if the C parser accepts them.
- A thread checks a larger batch. Each thread has one buffer of `BUFFER_BYTES`.
- If the decompressed records do not fit into this buffer, another thread reads them as a stream. The decompressed size
  of a batch is unlimited, but the memory for the check is limited: a pipe connects the decompressor to the check. Large
  batches have their own thread, so that batches of the usual size do not wait for them.

Decompression releases the GIL. The check of the records does not, so a thread pauses regularly.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from headrace_broker.log.config import LogConfig
from headrace_broker.log.validator import (
    RecordsCheck,
    decompressed_size_max,
    invalid_records_error,
    records_without_keys_error,
)
from headrace_broker.records.batch import COMPRESSION_MASK, HEADER, HEADER_SIZE, BatchHeader, CorruptBatchError
from headrace_broker.records.compression import (
    Compression,
    CompressionError,
    OutputFullError,
    check_lz4_frame,
    decompress_into,
    decompress_snappy_block,
    iter_snappy_blocks,
    streaming_decompressor,
)
from headrace_broker.records.validation import RecordsWithoutKeys, check_batch, check_stream, parse_batch

INLINE_BYTES = 64 * 1024
"""The event loop checks the batches of a request up to this decompressed size."""
INLINE_BYTES_MIN = 1024
"""Each batch that the event loop checks counts as at least this size, because a small batch also takes time."""
BUFFER_BYTES = 4 * 1024 * 1024
_ATTRIBUTES_LOW_BYTE = 22
_THREADS = 2
_CHUNK_BYTES = 64 * 1024
_INLINE_SNAPPY_BLOCKS_MAX = 16
_SNAPPY_BLOCKS_MAX = 1024
"""Data with more blocks is read as a stream. Producers write blocks of 32 KiB, and each block takes microseconds."""
_RUN_S = 0.0003
_PAUSE_S = 1e-6
"""The shortest pause. Another thread that waits for the GIL then acquires it."""


class RecordValidator:
    """Checks compressed batches. One event loop uses it."""

    def __init__(self) -> None:
        self._inline_buffer = bytearray(HEADER_SIZE + INLINE_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="record-validation")
        self._large_batch_thread = ThreadPoolExecutor(1, thread_name_prefix="large-record-validation")
        self._buffers = threading.local()
        self._ratios = dict.fromkeys(Compression, 1.0)  # the compression ratio of the last batch with this codec
        self._is_closed = False

    def check_small_batches(
        self, batches: Iterable[tuple[memoryview, LogConfig | None]]
    ) -> list[RecordsCheck | None] | None:
        """Check the batches of a request on the event loop; a batch without a config needs no check.

        Return None if this might take too long, so that threads must check the batches.
        """
        checks: list[RecordsCheck | None] = []
        bytes_left = INLINE_BYTES
        for records, config in batches:
            check = None
            if config is not None:
                check = self.check_small(records, config, bytes_left) if bytes_left > 0 else None
                if check is None:
                    return None
                bytes_left -= max(INLINE_BYTES_MIN, check.size_bytes)
            checks.append(check)
        return checks

    def check_small(self, records: memoryview, config: LogConfig, bytes_max: int = INLINE_BYTES) -> RecordsCheck | None:
        """Check the batch on the event loop. Return None if this might take too long, so that a thread must check it.

        `bytes_max` is the maximum decompressed size. The estimate is based on the compression ratio of the last batch,
        because decompression is expensive.
        """
        codec = Compression(records[_ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK)
        if len(records) * self._ratios[codec] > bytes_max:
            return None
        buffer = memoryview(self._inline_buffer)[: HEADER_SIZE + bytes_max]
        try:
            header, batch = self._decompress_into(buffer, records, _INLINE_SNAPPY_BLOCKS_MAX)
        except OutputFullError:
            self._ratios[codec] = max(1.0, bytes_max / len(records))
            return None
        except CompressionError as error:
            return _failed_check(error, len(records))
        keyless = parse_batch(batch, header, find_keyless=config.cleanup_compact)
        return None if keyless is None else _finished_check(keyless, header, config, len(batch))

    async def check(
        self, records: memoryview, config: LogConfig, is_wanted: Callable[[], bool] = lambda: True
    ) -> RecordsCheck:
        """Check the batch in a thread. If `is_wanted` returns False, a check that takes long ends with an error."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._check_in_thread, records, config)
        except OutputFullError:
            return await loop.run_in_executor(self._large_batch_thread, self._check_stream, records, config, is_wanted)

    def close(self) -> None:
        """Stop the threads. Running checks fail."""
        self._is_closed = True
        for threads in (self._threads, self._large_batch_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def _check_in_thread(self, records: memoryview, config: LogConfig) -> RecordsCheck:
        """Check the batch in the thread's buffer. Raises OutputFullError if the buffer is too small."""
        buffer: bytearray | None = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = bytearray(HEADER_SIZE + BUFFER_BYTES)
        try:
            header, batch = self._decompress_into(memoryview(buffer), records, _SNAPPY_BLOCKS_MAX)
            keyless = check_batch(batch, header, find_keyless=config.cleanup_compact, pause=_Pause())
        except OutputFullError:
            raise
        except (CompressionError, CorruptBatchError) as error:
            return _failed_check(error, len(records))
        return _finished_check(keyless, header, config, len(batch))

    def _decompress_into(
        self, buffer: memoryview, records: memoryview, snappy_blocks_max: int
    ) -> tuple[BatchHeader, memoryview]:
        """Decompress the batch into `buffer`. Return its header and the batch without compression.

        Raises OutputFullError if the buffer is too small or there are too many blocks, and CompressionError.
        """
        fields = list(HEADER.unpack_from(records))
        header = BatchHeader(*fields)
        codec, data = Compression(header.compression), records[HEADER_SIZE:]
        if codec == Compression.LZ4:
            check_lz4_frame(data)
        size_bytes = decompress_into(codec, data, buffer[HEADER_SIZE:], snappy_blocks_max=snappy_blocks_max)
        self._ratios[codec] = max(1.0, size_bytes / len(records))
        fields[5] &= ~COMPRESSION_MASK
        HEADER.pack_into(buffer, 0, *fields)
        return header, buffer[: HEADER_SIZE + size_bytes]

    def _check_stream(self, records: memoryview, config: LogConfig, is_wanted: Callable[[], bool]) -> RecordsCheck:
        header = BatchHeader(*HEADER.unpack_from(records))
        size_bytes_max = decompressed_size_max(config) if config.cleanup_compact else None
        try:
            with closing(
                self._decompress(header.compression, records[HEADER_SIZE:], size_bytes_max, is_wanted)
            ) as chunks:
                keyless = check_stream(chunks, header)
        except (CompressionError, CorruptBatchError) as error:
            return _failed_check(error, len(records))
        return _finished_check(keyless, header, config, len(records))

    def _decompress(
        self, codec: int, data: memoryview, size_bytes_max: int | None, is_wanted: Callable[[], bool]
    ) -> Generator[bytes | memoryview, None, None]:
        size_bytes = 0
        pause = _Pause()
        chunks: Generator[bytes | memoryview, None, None]
        chunks = _decompress_snappy(data) if codec == Compression.SNAPPY else _decompress_through_pipe(codec, data)
        with closing(chunks):
            for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes_max is not None and size_bytes > size_bytes_max:
                    raise CompressionError(
                        f"the decompressed records exceed {size_bytes_max} bytes, the limit of a compacted topic"
                    )
                if self._is_closed or not is_wanted():
                    raise CompressionError("the broker stops, or the client has disconnected")
                yield chunk
                pause()


def _failed_check(error: CompressionError | CorruptBatchError, size_bytes: int) -> RecordsCheck:
    reason = error.reason if isinstance(error, CorruptBatchError) else str(error)
    return RecordsCheck(invalid_records_error(reason), size_bytes=size_bytes)


def _finished_check(
    keyless: RecordsWithoutKeys, header: BatchHeader, config: LogConfig, size_bytes: int
) -> RecordsCheck:
    error = records_without_keys_error(keyless, header) if config.cleanup_compact and keyless.count else None
    return RecordsCheck(error, includes_keys=config.cleanup_compact, size_bytes=size_bytes)


class _Pause:
    """Called regularly by a thread: releases the GIL if the thread has run for a while."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last_s >= _RUN_S:
            time.sleep(_PAUSE_S)
            self._last_s = time.perf_counter()


def _decompress_snappy(data: memoryview) -> Generator[bytes | memoryview, None, None]:
    """Yield the decompressed data in chunks, at least one for each block, so that the caller can pause.

    A block of snappy data expands at most `_SNAPPY_RATIO_MAX` times.
    """
    for block in iter_snappy_blocks(data):
        decompressed = memoryview(decompress_snappy_block(block))
        for start in range(0, max(1, len(decompressed)), _CHUNK_BYTES):
            yield decompressed[start : start + _CHUNK_BYTES]


def _decompress_through_pipe(codec: int, data: memoryview) -> Generator[bytes | memoryview, None, None]:
    """Yield the decompressed data in chunks. Another thread decompresses the data into a pipe.

    cramjam has no function that decompresses into a buffer and continues with the next part of the data. But it can
    write to a file, and it then waits until the reader has read the data. If the reader closes the pipe, the thread
    ends.
    """
    import cramjam

    read_end, write_end = os.pipe()
    try:
        output = cramjam.File(f"/dev/fd/{write_end}", read=False, write=True, truncate=False)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    outputs = [output]
    del output
    errors: list[Exception] = []
    thread = threading.Thread(
        target=_write_decompressed, args=(codec, data, outputs, errors), name="record-decompression", daemon=True
    )
    thread.start()
    try:
        while chunk := os.read(read_end, _CHUNK_BYTES):
            yield chunk
    finally:
        os.close(read_end)
        thread.join()
    if errors:
        raise CompressionError(f"{Compression(codec).name.lower()}: {errors[0]}")


def _write_decompressed(codec: int, data: memoryview, outputs: list[Any], errors: list[Exception]) -> None:
    try:
        streaming_decompressor(codec)(data, outputs[0])
    except Exception as error:  # noqa: BLE001  the reader raises the error
        errors.append(error)
    finally:
        outputs.clear()  # closes the file, so that the reader receives the end of the data
