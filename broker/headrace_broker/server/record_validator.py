"""Checks the records of compressed batches before the leader appends them (`headrace.records.validation=strict`).

Without this check, the leader would append a batch that cannot be decompressed, and no consumer could read past it.

- The event loop checks a batch of at most `INLINE_BYTES` decompressed bytes itself, in its own buffer.
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
from collections.abc import Callable, Generator
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
    decompress_into,
    decompress_snappy_block,
    iter_snappy_blocks,
    streaming_decompressor,
)
from headrace_broker.records.validation import RecordsWithoutKeys, check_batch, check_stream

INLINE_BYTES = 64 * 1024
"""The event loop checks batches of at most this decompressed size."""
BUFFER_BYTES = 4 * 1024 * 1024
_ATTRIBUTES_LOW_BYTE = 22
_THREADS = 2
_CHUNK_BYTES = 64 * 1024
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

    def check_small(self, records: memoryview, config: LogConfig) -> RecordsCheck | None:
        """Check the batch on the event loop. Return None if the batch is probably too large for this.

        The estimate is based on the compression ratio of the last batch, because decompression is expensive.
        """
        codec = Compression(records[_ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK)
        if len(records) * self._ratios[codec] > INLINE_BYTES:
            return None
        try:
            return self._check_in_buffer(records, config, self._inline_buffer, lambda: None)
        except OutputFullError:
            self._ratios[codec] = INLINE_BYTES / len(records)
            return None

    async def check(self, records: memoryview, config: LogConfig) -> RecordsCheck:
        """Check the batch in a thread."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._check_in_thread, records, config)
        except OutputFullError:
            return await loop.run_in_executor(self._large_batch_thread, self._check_stream, records, config)

    def close(self) -> None:
        """Stop the threads. Running checks fail."""
        self._is_closed = True
        for threads in (self._threads, self._large_batch_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def _check_in_thread(self, records: memoryview, config: LogConfig) -> RecordsCheck:
        buffer: bytearray | None = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = bytearray(HEADER_SIZE + BUFFER_BYTES)
        return self._check_in_buffer(records, config, buffer, _Pause())

    def _check_in_buffer(
        self, records: memoryview, config: LogConfig, buffer: bytearray, pause: Callable[[], None]
    ) -> RecordsCheck:
        """Decompress the batch into `buffer` and check it. Raises OutputFullError if the buffer is too small."""
        fields = list(HEADER.unpack_from(records))
        header = BatchHeader(*fields)
        view = memoryview(buffer)
        try:
            size_bytes = decompress_into(header.compression, records[HEADER_SIZE:], view[HEADER_SIZE:])
            self._ratios[Compression(header.compression)] = size_bytes / len(records)
            fields[5] &= ~COMPRESSION_MASK
            HEADER.pack_into(buffer, 0, *fields)
            batch = view[: HEADER_SIZE + size_bytes]
            keyless = check_batch(batch, header, find_keyless=config.cleanup_compact, pause=pause)
        except OutputFullError:
            raise
        except (CompressionError, CorruptBatchError) as error:
            return _failed_check(error)
        return _finished_check(keyless, header, config)

    def _check_stream(self, records: memoryview, config: LogConfig) -> RecordsCheck:
        header = BatchHeader(*HEADER.unpack_from(records))
        size_bytes_max = decompressed_size_max(config) if config.cleanup_compact else None
        try:
            with closing(self._decompress(header.compression, records[HEADER_SIZE:], size_bytes_max)) as chunks:
                keyless = check_stream(chunks, header)
        except (CompressionError, CorruptBatchError) as error:
            return _failed_check(error)
        return _finished_check(keyless, header, config)

    def _decompress(
        self, codec: int, data: memoryview, size_bytes_max: int | None
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
                if self._is_closed:
                    raise CompressionError("the broker stops")
                yield chunk
                pause()


def _failed_check(error: CompressionError | CorruptBatchError) -> RecordsCheck:
    reason = error.reason if isinstance(error, CorruptBatchError) else str(error)
    return RecordsCheck(invalid_records_error(reason))


def _finished_check(keyless: RecordsWithoutKeys, header: BatchHeader, config: LogConfig) -> RecordsCheck:
    error = records_without_keys_error(keyless, header) if config.cleanup_compact and keyless.count else None
    return RecordsCheck(error, includes_keys=config.cleanup_compact)


class _Pause:
    """Called regularly by a thread: releases the GIL if the thread has run for a while."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last_s >= _RUN_S:
            time.sleep(_PAUSE_S)
            self._last_s = time.perf_counter()


def _decompress_snappy(data: memoryview) -> Generator[bytes | memoryview, None, None]:
    """Yield the decompressed data in chunks. A block of snappy data expands at most `_SNAPPY_RATIO_MAX` times."""
    for block in iter_snappy_blocks(data):
        decompressed = memoryview(decompress_snappy_block(block))
        for start in range(0, len(decompressed), _CHUNK_BYTES):
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
