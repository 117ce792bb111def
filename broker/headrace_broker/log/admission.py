"""Which batches a leader takes, and what it makes of them before they are written. Pure.

The default path reads the header and the checksum only. Records are walked where a topic needs it: a compacted topic
refuses records without keys, and a topic with a `compression.type` of its own packs them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from headrace_broker.log.config import LONG_MAX, LogConfig
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    OVERHEAD_SIZE,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    CorruptBatchError,
    crc32c,
)
from headrace_broker.records.builder import replace_records
from headrace_broker.records.compression import DECOMPRESSED_SIZE_BYTES_MAX, Compression, compress
from headrace_broker.records.reader import uncompressed
from headrace_broker.records.validation import find_keyless_records

RECORD_ERRORS_MAX = 100
RECORD_SIZE_MIN = 7
"""Bytes of the smallest record there is."""
_UNPACKED_SIZE_MIN = 64 * 1024 * 1024
_UNPACKED_RATIO = 16

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class AppendOrigin(Enum):
    """Who appends: a client is checked in full, the broker's own coordinators and controller are trusted."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"


class RecordsRejectedError(ApiError):
    """A batch refused for some of its records; `record_errors` = (index in the batch, message), at most a hundred."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def admit(records: bytearray | memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int) -> BatchHeader:
    """Return the header of the one batch in `records`, if a leader may append it. Raises ApiError."""
    size_bytes = len(records)
    if size_bytes < HEADER_SIZE:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{size_bytes} bytes are too few for a record batch")
    header = BatchHeader(*HEADER.unpack_from(records))
    if header.magic != MAGIC:
        raise ApiError(ErrorCode.INVALID_RECORD, f"record batches of magic {header.magic} are not taken, only {MAGIC}")
    if header.batch_length + OVERHEAD_SIZE != size_bytes:
        raise _wrong_size(header, size_bytes)
    if size_bytes > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {size_bytes} bytes is over the topic's max.message.bytes={config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a record batch of {size_bytes} bytes does not fit into a segment of segment.bytes={config.segment_bytes}",
        )
    if crc32c(memoryview(records)[ATTRIBUTES_OFFSET:]) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the checksum {header.crc:#010x} does not match the record batch")
    count = header.records_count
    if count != header.last_offset_delta + 1 or count <= 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{count} records with a last offset delta of {header.last_offset_delta} in a batch",
        )
    if origin is AppendOrigin.CLIENT:
        _check_client(header, size_bytes)
        if not config.is_log_append_time:
            _check_timestamps(header, config, now_ms)
    if config.cleanup_compact and not header.attributes & CONTROL_MASK:
        _check_keys(memoryview(records), header, config)
    return header


def _wrong_size(header: BatchHeader, size_bytes: int) -> ApiError:
    if HEADER_SIZE <= header.size_bytes < size_bytes:
        return ApiError(ErrorCode.INVALID_RECORD, "a partition's records must be exactly one record batch")
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE, f"the record batch claims {header.size_bytes} bytes, the request has {size_bytes}"
    )


def _check_client(header: BatchHeader, size_bytes: int) -> None:
    if header.base_offset != 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"the base offset of a produced batch must be 0, not {header.base_offset}"
        )
    if header.attributes & CONTROL_MASK:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients cannot write control records")
    if header.attributes & TIMESTAMP_TYPE_MASK:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to LogAppendTime")
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {header.compression} is unknown")
    room = size_bytes - HEADER_SIZE if not header.attributes & COMPRESSION_MASK else DECOMPRESSED_SIZE_BYTES_MAX
    if header.records_count * RECORD_SIZE_MIN > room or size_bytes == HEADER_SIZE:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"{header.records_count} records cannot be in a batch of {size_bytes} bytes"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} has epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    newest = header.max_timestamp
    if newest == NO_TIMESTAMP:
        return
    oldest = min(header.base_timestamp, newest)
    is_too_old = config.message_timestamp_before_max_ms != LONG_MAX and (
        now_ms - oldest > config.message_timestamp_before_max_ms
    )
    if is_too_old or newest - now_ms > config.message_timestamp_after_max_ms:
        earliest = max(now_ms - config.message_timestamp_before_max_ms, 0)
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps {oldest} to {newest} do not lie within {earliest} and "
            f"{now_ms + config.message_timestamp_after_max_ms} (message.timestamp.before.max.ms, .after.max.ms)",
        )


def _check_keys(records: memoryview, header: BatchHeader, config: LogConfig) -> None:
    try:
        keyless = find_keyless_records(records, 0, header, _unpacked_size_max(config))
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    if keyless:
        raise RecordsRejectedError(
            ErrorCode.INVALID_RECORD,
            f"{len(keyless)} of {header.records_count} records have no key, which a compacted topic cannot take",
            [(index, "a compacted topic takes no record without a key") for index in keyless[:RECORD_ERRORS_MAX]],
        )


def _unpacked_size_max(config: LogConfig) -> int:
    """What a batch may unpack to while everybody waits: plenty for what producers make, little for a bomb."""
    return max(_UNPACKED_SIZE_MIN, _UNPACKED_RATIO * config.max_message_bytes)


def recompress(records: bytearray | memoryview, header: BatchHeader, config: LogConfig) -> bytearray | None:
    """Return the batch in the topic's own codec, None when it has it already. Raises ApiError."""
    codec = _CODECS.get(config.compression_type, header.compression)
    if codec == header.compression:
        return None
    try:
        plain = uncompressed(memoryview(records), 0, header, _unpacked_size_max(config))
    except CorruptBatchError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    packed = compress(codec, memoryview(plain)[HEADER_SIZE:], config.compression_level)
    return replace_records(header, packed, attributes=header.attributes & ~COMPRESSION_MASK | codec)
