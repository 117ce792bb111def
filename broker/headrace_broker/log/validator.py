"""Validates the batches that a leader appends, and recompresses them to the topic's codec (Kafka's LogValidator).

This module checks the batch header and the checksum. `server/record_validator.py` checks the records of compressed
batches before the append, and passes the result as a `RecordsCheck`. Without such a result, this module reads the
records only if the topic is compacted, because the leader then rejects records without keys. If the topic has its own
`compression.type`, the leader recompresses the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from headrace_broker.records.reader import decompress_batch
from headrace_broker.records.validation import RecordsWithoutKeys, check_batch

RECORD_SIZE_MIN = 7
"""Size of the smallest possible record, in bytes."""
_DECOMPRESSED_SIZE_MIN = 64 * 1024 * 1024
_DECOMPRESSED_RATIO = 16

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class AppendOrigin(Enum):
    """The source of an append. Only batches from clients are fully validated."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"


class RecordsRejectedError(ApiError):
    """A batch was rejected because of some of its records.

    `record_errors` contains (index in the batch, message) of at most 100 records.
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)
class RecordsCheck:
    """The result of a check of all records in a batch: the error with which the leader rejects the batch, or None.

    `includes_keys` is set if the check also required a key in every record. `size_bytes` is the decompressed size of
    the batch, or its compressed size if it was not decompressed as a whole.
    """

    error: ApiError | None = None
    includes_keys: bool = False
    size_bytes: int = field(default=0, compare=False)


def validate_batch(
    records: bytearray | memoryview,
    config: LogConfig,
    origin: AppendOrigin,
    now_ms: int,
    check: RecordsCheck | None = None,
) -> BatchHeader:
    """Validate `records` and return the header of the only batch in it.

    `check` is the result of an earlier check of the records. Raises ApiError if the leader must not append the batch,
    or if `records` is not exactly one batch.
    """
    header = validate_header(records, config, origin, now_ms)
    if check is not None and check.error is not None:
        raise check.error
    if check is None and header.records_count * RECORD_SIZE_MIN > DECOMPRESSED_SIZE_BYTES_MAX:
        raise ApiError(ErrorCode.INVALID_RECORD, f"the batch header declares {header.records_count} records, too many")
    are_keys_checked = check is not None and check.includes_keys
    if config.cleanup_compact and not are_keys_checked and not header.attributes & CONTROL_MASK:
        _check_keys(memoryview(records), header, config)
    return header


def validate_header(
    records: bytearray | memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> BatchHeader:
    """Validate everything except the records in the batch. Raises ApiError as `validate_batch` does."""
    size_bytes = len(records)
    if size_bytes < HEADER_SIZE:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the records have {size_bytes} bytes, too few for a record batch")
    header = BatchHeader(*HEADER.unpack_from(records))
    if header.magic != MAGIC:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"record batches of magic {header.magic} are not supported, only magic {MAGIC}"
        )
    if header.batch_length + OVERHEAD_SIZE != size_bytes:
        raise _wrong_size_error(header, size_bytes)
    if size_bytes > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {size_bytes} bytes exceeds the topic's max.message.bytes={config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a record batch of {size_bytes} bytes exceeds the topic's segment.bytes={config.segment_bytes}",
        )
    if crc32c(memoryview(records)[ATTRIBUTES_OFFSET:]) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the checksum {header.crc:#010x} does not match the record batch")
    count = header.records_count
    if count != header.last_offset_delta + 1 or count <= 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"the batch has {count} records but a last offset delta of {header.last_offset_delta}",
        )
    if origin is AppendOrigin.CLIENT:
        _validate_client_batch(header, size_bytes)
        if header.attributes & TIMESTAMP_TYPE_MASK:
            _check_timestamp_type(header, config)
        if not config.is_log_append_time:
            _check_timestamps(header, config, now_ms)
    return header


def _wrong_size_error(header: BatchHeader, size_bytes: int) -> ApiError:
    if HEADER_SIZE <= header.size_bytes < size_bytes:
        return ApiError(ErrorCode.INVALID_RECORD, "a partition's records must be exactly one record batch")
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the header of the record batch declares {header.size_bytes} bytes, but the request has {size_bytes}",
    )


def _validate_client_batch(header: BatchHeader, size_bytes: int) -> None:
    if header.base_offset != 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"the base offset of a produced record batch must be 0, not {header.base_offset}"
        )
    if header.attributes & CONTROL_MASK:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients cannot write control records")
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the record batch has the unknown compression codec {header.compression}",
        )
    is_too_small = not header.attributes & COMPRESSION_MASK and (
        header.records_count * RECORD_SIZE_MIN > size_bytes - HEADER_SIZE
    )
    if is_too_small or size_bytes == HEADER_SIZE:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"{header.records_count} records do not fit into a batch of {size_bytes} bytes"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}, "
            "but neither may be negative",
        )


def _check_timestamp_type(header: BatchHeader, config: LogConfig) -> None:
    """Reject a batch with the timestamp type LogAppendTime in the same cases as Kafka.

    Kafka accepts such a batch if the topic uses CreateTime and the batch has a timestamp. It stores the batch with the
    timestamp type CreateTime.
    """
    if config.is_log_append_time or header.max_timestamp == NO_TIMESTAMP:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to LogAppendTime")


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    newest = header.max_timestamp
    if newest == NO_TIMESTAMP:
        return
    # With the timestamp type LogAppendTime, the maximum timestamp is the timestamp of all records.
    oldest = newest if header.attributes & TIMESTAMP_TYPE_MASK else min(header.base_timestamp, newest)
    is_too_old = config.message_timestamp_before_max_ms != LONG_MAX and (
        now_ms - oldest > config.message_timestamp_before_max_ms
    )
    if is_too_old or newest - now_ms > config.message_timestamp_after_max_ms:
        earliest = max(now_ms - config.message_timestamp_before_max_ms, 0)
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the records have timestamps from {oldest} to {newest}, but message.timestamp.before.max.ms and "
            f"message.timestamp.after.max.ms allow only {earliest} to {now_ms + config.message_timestamp_after_max_ms}",
        )


def _check_keys(records: memoryview, header: BatchHeader, config: LogConfig) -> None:
    try:
        batch = decompress_batch(records, 0, header, decompressed_size_max(config))
        keyless = check_batch(batch, header, find_keyless=True)
    except CorruptBatchError as error:
        raise invalid_records_error(error.reason) from error
    if keyless.count:
        raise records_without_keys_error(keyless, header)


def invalid_records_error(reason: str) -> ApiError:
    """Return the error for a batch whose records cannot be read."""
    return ApiError(ErrorCode.INVALID_RECORD, f"the records of the batch are invalid: {reason}")


def records_without_keys_error(keyless: RecordsWithoutKeys, header: BatchHeader) -> RecordsRejectedError:
    """Return the error for a batch with records without keys in a compacted topic."""
    return RecordsRejectedError(
        ErrorCode.INVALID_RECORD,
        f"{keyless.count} of {header.records_count} records have no key, but a compacted topic requires keys",
        [(index, "a compacted topic requires a key in every record") for index in keyless.indexes],
    )


def decompressed_size_max(config: LogConfig) -> int:
    """Return the maximum decompressed size of a batch that is decompressed as a whole.

    This limit applies to compacted topics and to topics with their own `compression.type`. It is far above the size of
    real producers' batches. It rejects small batches that decompress to gigabytes, because the leader or the log
    cleaner would decompress them in memory.
    """
    return max(_DECOMPRESSED_SIZE_MIN, _DECOMPRESSED_RATIO * config.max_message_bytes)


def recompress(records: bytearray | memoryview, header: BatchHeader, config: LogConfig) -> bytearray | None:
    """Return the batch, compressed with the topic's codec. Raises ApiError.

    Return None if the batch already uses this codec.
    """
    codec = _CODECS.get(config.compression_type, header.compression)
    if codec == header.compression:
        return None
    try:
        decompressed = decompress_batch(memoryview(records), 0, header, decompressed_size_max(config))
        if not header.compression:  # not checked yet; recompression takes much longer than the check
            check_batch(decompressed, header, find_keyless=False)
    except CorruptBatchError as error:
        raise invalid_records_error(error.reason) from error
    compressed = compress(codec, memoryview(decompressed)[HEADER_SIZE:], config.compression_level)
    return replace_records(header, compressed, attributes=header.attributes & ~COMPRESSION_MASK | codec)
