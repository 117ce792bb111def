"""Reads record batches into columns, with aiokafka's C parser."""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace_broker.records._extensions import load_aiokafka_records
from headrace_broker.records.batch import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    iter_batches,
)
from headrace_broker.records.batch import verify_crc as check_crc
from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.records.compression import DECOMPRESSED_SIZE_BYTES_MAX, CompressionError, decompress


def read_columns(
    buffer: Buffer,
    from_offset: int = 0,
    *,
    verify_crc: bool = True,
    decompressed_size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> RecordColumns:
    """Return the data records at or after offset `from_offset` in the complete batches of `buffer`.

    Control batches are skipped. The result's `next_offset` is the offset after the last batch, which may be a control
    batch. If there is no batch, `next_offset` is `from_offset`. Raises CorruptBatchError.
    """
    view = memoryview(buffer)
    columns: RecordColumns | None = None
    next_offset = from_offset
    for position, header in iter_batches(view):
        if header.next_offset <= from_offset:
            continue
        if verify_crc:
            check_crc(view, position, header)
        next_offset = max(next_offset, header.next_offset)
        if header.is_control or header.records_count == 0:
            continue
        batch = read_batch(view, position, header, decompressed_size_bytes_max)
        if header.base_offset < from_offset:
            batch = _from_offset(batch, from_offset)
        columns = batch if columns is None else _extend(columns, batch)
    if columns is None:
        columns = RecordColumns(values=[], offsets=range(from_offset, from_offset))
    columns.next_offset = next_offset
    return columns


def read_batch(
    view: memoryview,
    position: int,
    header: BatchHeader,
    decompressed_size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> RecordColumns:
    """Return all records of one batch, including control records. Raises CorruptBatchError."""
    count = header.records_count
    if count == 0 and header.size_bytes == HEADER_SIZE:  # compaction has removed all records of the batch
        return RecordColumns(values=[], offsets=range(header.base_offset, header.base_offset))
    batch = decompress_batch(view, position, header, decompressed_size_bytes_max)
    if count < 0 or count > len(batch):  # reject an impossible count before parsing: a record has at least 7 bytes
        raise CorruptBatchError(position, f"{count} records do not fit into {len(batch)} bytes")
    try:
        columns = _read_records(batch, header)
    except Exception as error:  # the C parser raises various exceptions, all for invalid bytes
        raise CorruptBatchError(position, f"records cannot be parsed: {error}") from error
    if len(columns) != count:
        raise CorruptBatchError(
            position, f"the batch has {len(columns)} records, but the record count in the batch header is {count}"
        )
    return columns


def decompress_batch(view: memoryview, position: int, header: BatchHeader, size_bytes_max: int) -> Buffer:
    """Return the batch at `position` with its records decompressed and the codec cleared in its header.

    Raises CorruptBatchError.
    """
    end = position + header.size_bytes
    if not header.attributes & COMPRESSION_MASK:
        return view[position:end]
    try:
        payload = decompress(header.compression, view[position + HEADER_SIZE : end], size_bytes_max)
    except CompressionError as error:
        raise CorruptBatchError(position, str(error)) from error
    fields = list(HEADER.unpack_from(view, position))
    fields[5] &= ~COMPRESSION_MASK
    return HEADER.pack(*fields) + payload


def _read_records(batch: Buffer, header: BatchHeader) -> RecordColumns:
    parser = load_aiokafka_records().DefaultRecordBatch
    offsets: range | list[int]
    if header.records_count == header.last_offset_delta + 1:
        offsets = range(header.base_offset, header.next_offset)
    else:  # compaction has left gaps between the offsets
        offsets = [record.offset for record in parser(batch)]
    append_time = header.max_timestamp if header.timestamp_type else None
    first, *second = islice(parser(batch), 2)
    if first.key is None and all(record.headers == first.headers for record in second):
        columns = _read_values(parser(batch), header, first.timestamp, first.headers)
        if columns is not None:
            columns.offsets = offsets
            return columns
    columns = _read_all(parser(batch))
    columns.offsets = offsets
    columns.timestamp_type = header.timestamp_type
    if append_time is not None:
        columns.timestamps = append_time
    return columns


def _read_values(records: Any, header: BatchHeader, timestamp: int, headers: RecordHeaders) -> RecordColumns | None:
    """Return the records if each of them has this timestamp, these headers and no key, else None."""
    if header.max_timestamp != timestamp:
        return None
    values = [
        record.value
        for record in records
        if record.key is None
        and record.timestamp == timestamp
        and (record.headers == headers if headers else not record.headers)
    ]
    count = len(values)
    if count != header.records_count:
        return None
    return RecordColumns(
        values=values,
        headers=[headers] * count if headers else None,
        timestamps=timestamp,
        timestamp_type=header.timestamp_type,
    )


def _read_all(records: Any) -> RecordColumns:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    timestamps: list[int] = []
    headers: list[RecordHeaders] | None = None
    add_key, add_value, add_timestamp = keys.append, values.append, timestamps.append
    last: RecordHeaders = []
    for record in records:
        add_key(record.key)
        add_value(record.value)
        add_timestamp(record.timestamp)
        if record.headers != last:
            if headers is None:
                headers = [last] * (len(values) - 1)
            last = record.headers
        if headers is not None:
            headers.append(last)
    count = len(values)
    return RecordColumns(
        values=values,
        keys=None if keys.count(None) == count else keys,
        headers=headers,
        timestamps=timestamps[0] if count and timestamps.count(timestamps[0]) == count else timestamps,
    )


def _from_offset(columns: RecordColumns, from_offset: int) -> RecordColumns:
    offsets = columns.offsets or ()
    start = next((index for index, offset in enumerate(offsets) if offset >= from_offset), len(columns))
    return columns.slice(start, len(columns))


def _extend(columns: RecordColumns, batch: RecordColumns) -> RecordColumns:
    """Append `batch` to `columns` in place.

    If only one of the two has keys, the keys of the other records become null. If only one of the two has headers, the
    headers of the other records become empty.
    """
    count = len(columns)
    if columns.keys is not None or batch.keys is not None:
        columns.keys = columns.keys if columns.keys is not None else [None] * count
        columns.keys += batch.keys if batch.keys is not None else [None] * len(batch)
    if columns.headers is not None or batch.headers is not None:
        left = columns.headers if columns.headers is not None else [[]] * count
        right = batch.headers if batch.headers is not None else [[]] * len(batch)
        if left and right and left[-1] == right[0]:
            last, first = left[-1], right[0]
            right = (
                [last] * len(right)
                if right.count(first) == len(right)
                else [last if each is first else each for each in right]
            )
        left += right
        columns.headers = left
    if isinstance(columns.timestamps, list) or columns.timestamps != batch.timestamps:
        timestamps = columns.timestamp_list()
        timestamps += batch.timestamp_list()
        columns.timestamps = timestamps
    columns.offsets = _join_offsets(columns.offsets, batch.offsets)
    columns.timestamp_type = batch.timestamp_type
    columns.values += batch.values
    return columns


def _join_offsets(left: list[int] | range | None, right: list[int] | range | None) -> list[int] | range:
    if isinstance(left, range) and isinstance(right, range) and left.stop == right.start:
        return range(left.start, right.stop)
    joined = left if isinstance(left, list) else list(left or ())
    joined += right or ()
    return joined
