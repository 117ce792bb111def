"""Converts the statistics of a Parquet footer to those of a Delta table's log.

Readers of Delta tables skip files by these statistics, so a minimum or maximum must never exclude a value of the file.
A column without a usable minimum or maximum has none. Specification: Delta's protocol, "Per-file Statistics". This
module does no I/O.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.files.encodings import leaves

INDEXED_COLUMNS = 32
"""The default of the table property `delta.dataSkippingNumIndexedCols`."""
_TEXT_MAX = 32
_LARGEST_CHARACTER = "\U0010ffff"
_EPOCH = dt.datetime(1970, 1, 1)


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """Return the metadata of a descriptor's footer."""
    return pq.read_metadata(pa.BufferReader(footer))


def delta_statistics(footer: bytes, indexed_columns: int = INDEXED_COLUMNS) -> str:
    """Return the statistics of a file as the JSON text of an add action.

    They contain the first `indexed_columns` columns, where fields of structs count as columns, or all if it is
    negative. Arrays and maps have no statistics.
    """
    metadata = parse_footer(footer)
    minimums: dict[str, Any] = {}
    maximums: dict[str, Any] = {}
    null_counts: dict[str, Any] = {}
    for column in _columns(metadata, indexed_columns):
        if column.null_count is not None:
            _set(null_counts, column.path, str(column.null_count))
        if (minimum := _json_minimum(column)) is not None:
            _set(minimums, column.path, minimum)
        if (maximum := _json_maximum(column)) is not None:
            _set(maximums, column.path, maximum)
    return _json_object(
        {
            "numRecords": str(metadata.num_rows),
            "minValues": minimums,
            "maxValues": maximums,
            "nullCount": null_counts,
        }
    )


@dataclass(slots=True)
class _ColumnStatistics:
    """The statistics of a column in all row groups. `minimum` and `maximum` are None if a row group has none."""

    path: tuple[str, ...]
    type: pa.DataType
    null_count: int | None
    minimum: Any = None
    maximum: Any = None


def _columns(metadata: pq.FileMetaData, limit: int) -> Iterator[_ColumnStatistics]:
    found = list(leaves(metadata.schema.to_arrow_schema()))
    for index, (path, type_, is_repeated) in enumerate(found if limit < 0 else found[:limit]):
        if not is_repeated:
            yield _column(metadata, index, path, type_)


def _column(metadata: pq.FileMetaData, index: int, path: tuple[str, ...], type_: pa.DataType) -> _ColumnStatistics:
    chunks = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
    statistics = [chunk.statistics for chunk in chunks]
    if any(entry is None or not entry.has_null_count for entry in statistics):
        return _ColumnStatistics(path, type_, None)
    nulls = [entry.null_count for entry in statistics]
    column = _ColumnStatistics(path, type_, sum(nulls))
    # A row group that contains only nulls has no minimum and no maximum, and needs none.
    with_values = [
        entry for entry, chunk, count in zip(statistics, chunks, nulls, strict=True) if count < chunk.num_values
    ]
    if with_values and all(entry.has_min_max for entry in with_values):
        bounds = [_bounds(entry, type_) for entry in with_values]
        column.minimum = min(low for low, _ in bounds)
        column.maximum = max(high for _, high in bounds)
    return column


def _bounds(entry: Any, type_: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_temporal(type_):  # Python's dates have fewer years
        return entry.min_raw, entry.max_raw
    return entry.min, entry.max


def _json_minimum(column: _ColumnStatistics) -> str | None:
    value = column.minimum
    if isinstance(value, str):
        return json.dumps(value[:_TEXT_MAX])
    if value is not None and pa.types.is_timestamp(column.type):
        return _json_timestamp(value // 1000, column.type)
    return _json_value(value, column.type)


def _json_maximum(column: _ColumnStatistics) -> str | None:
    value = column.maximum
    if isinstance(value, str):
        if len(value) <= _TEXT_MAX:
            return json.dumps(value)
        # The truncated text is less than the value, so a character is appended that is greater than every other.
        return None if value[_TEXT_MAX] == _LARGEST_CHARACTER else json.dumps(value[:_TEXT_MAX] + _LARGEST_CHARACTER)
    if value is not None and pa.types.is_timestamp(column.type):
        return _json_timestamp(-(-value // 1000), column.type)
    return _json_value(value, column.type)


def _json_value(value: Any, type_: pa.DataType) -> str | None:
    """Return a number or date as JSON, or None if the value or its type has no statistics."""
    if value is None or isinstance(value, bool | bytes):
        return None
    if pa.types.is_date(type_):
        text = _iso_text(value * 86_400_000)
        return None if text is None else json.dumps(text[:10])
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, int) else None


def _json_timestamp(milliseconds: int, type_: pa.DataType) -> str | None:
    """Return a timestamp as JSON. The protocol's timestamps have milliseconds: a minimum is rounded down, a maximum up.

    Writers that round a maximum down rely on readers to add a millisecond.
    """
    text = _iso_text(milliseconds)
    return None if text is None else json.dumps(text + ("Z" if type_.tz else ""))


def _iso_text(milliseconds: int) -> str | None:
    """Return a time as text, or None if its year is not 1 to 9999."""
    try:
        return (_EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None


def _set(target: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    *parents, name = path
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = value


def _json_object(value: dict[str, Any]) -> str:
    """Return nested objects as JSON. Other values are JSON texts already: decimals would lose digits as floats."""
    items = (
        f"{json.dumps(name)}:{_json_object(item) if isinstance(item, dict) else item}" for name, item in value.items()
    )
    return "{" + ",".join(items) + "}"
