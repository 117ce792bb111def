"""Computes the partition values of rows, and splits a record batch by partition, without a loop over the rows.

The transforms are those of Iceberg's table specification. This module does no I/O.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_connectors.lakehouse.files.bucket_hash import hash_binary, hash_decimals, hash_integers
from headrace_connectors.lakehouse.files.layout import PartitionField

Partition = tuple[Any, ...]

_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_RADIX_GROUPS_MAX = 1 << 16
"""NumPy sorts 16-bit integers by radix, which is several times faster."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The days 0001-01-01 and 9999-12-31, counted from 1970-01-01."""


def split_by_partition(
    rows: pa.RecordBatch, fields: Sequence[PartitionField]
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the partition values and the rows of each partition. The rows of a partition keep their order.

    The rows of different partitions share no memory, so that each part can be freed alone.
    """
    if not fields or not rows.num_rows:
        yield from [((), rows)] if rows.num_rows else []
        return
    columns = [partition_values(rows.column(field.column), field).dictionary_encode("encode") for field in fields]
    groups, count = _group_numbers(columns)
    if count == 1:
        yield tuple(column[0].as_py() for column in columns), rows
        return
    order = np.argsort(groups.astype(np.uint16) if count <= _RADIX_GROUPS_MAX else groups, kind="stable")
    ends = np.cumsum(np.bincount(groups, minlength=count)).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        partition = tuple(column[int(order[start])].as_py() for column in columns)
        yield partition, rows.take(pa.array(order[start:end]))


def rows_outside_calendar(rows: pa.RecordBatch, fields: Sequence[PartitionField]) -> list[int]:
    """Return the indexes of rows that `split_by_partition` rejects, because their year is not 1 to 9999.

    Python's dates, with which partition values are passed on, have only these years.
    """
    found: set[int] = set()
    for name in dict.fromkeys(field.column for field in fields if field.transform in ("identity", "day", "hour")):
        array = rows.column(name)
        if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
            days = _days(array)
            outside = ((days < _FIRST_DAY) | (days > _LAST_DAY)) & _valid(array)
            found.update(np.flatnonzero(outside).tolist())
    return sorted(found)


def partition_values(array: pa.Array, field: PartitionField) -> pa.Array:
    """Return the partition value of each row. Null stays null."""
    if field.transform == "identity":
        return array
    if field.transform == "bucket":
        return _masked((_hashes(array) & np.uint32(0x7FFFFFFF)) % np.uint32(field.argument), array, pa.int32())
    if field.transform == "truncate":
        return _truncated(array, field.argument)
    if field.transform == "hour":
        return _masked(_microseconds(array) // _HOUR_US, array, pa.int32())
    days = _days(array)
    if field.transform == "day":
        return _masked(days, array, pa.date32())
    unit = "datetime64[M]" if field.transform == "month" else "datetime64[Y]"
    return _masked(days.astype("datetime64[D]").astype(unit).astype(np.int64), array, pa.int32())


def _group_numbers(columns: Sequence[pa.DictionaryArray]) -> tuple[npt.NDArray[Any], int]:
    """Return a number for each row, and how many numbers there are. Rows of the same partition have equal numbers."""
    groups: npt.NDArray[Any] = columns[0].indices.to_numpy(zero_copy_only=False)
    count = len(columns[0].dictionary)
    for column in columns[1:]:
        if len(column.dictionary) > 1:
            combined = groups.astype(np.int64) * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
            found, groups = np.unique(combined, return_inverse=True)
            count = len(found)
    return groups, count


def _hashes(array: pa.Array) -> npt.NDArray[np.uint32]:
    type_ = array.type
    if pa.types.is_integer(type_):
        return hash_integers(_values(array, type_.to_pandas_dtype()).astype(np.int64))
    if pa.types.is_date(type_):
        return hash_integers(_days(array))
    if pa.types.is_timestamp(type_):
        return hash_integers(_microseconds(array))
    return hash_decimals(array) if pa.types.is_decimal(type_) else hash_binary(array)


def _truncated(array: pa.Array, width: int) -> pa.Array:
    type_ = array.type
    if pa.types.is_integer(type_):
        values = _values(array, type_.to_pandas_dtype())
        # Java's arithmetic: the result of a value near the type's minimum wraps around.
        wide = values.astype(np.int64)
        return _masked((wide - wide % width).astype(values.dtype), array, type_)
    if pa.types.is_decimal(type_):
        return _truncated_decimals(array, width)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pc.utf8_slice_codeunits(array, 0, width)
    return pc.binary_slice(array, 0, width)


def _truncated_decimals(array: pa.Array, width: int) -> pa.Array:
    scale = array.type.scale
    encoded = array.dictionary_encode()
    truncated = []
    with decimal.localcontext(prec=80):
        for value in encoded.dictionary.to_pylist():
            unscaled = int(value.scaleb(scale))
            truncated.append(decimal.Decimal(unscaled - unscaled % width).scaleb(-scale))
    return pa.array(truncated, pa.decimal128(38, scale)).take(encoded.indices)


def _microseconds(array: pa.Array) -> npt.NDArray[np.int64]:
    if array.type.unit != "us":
        array = array.cast(pa.timestamp("us", array.type.tz))
    return _values(array, np.int64)


def _days(array: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_date32(array.type):
        return _values(array, np.int32).astype(np.int64)
    return _microseconds(array) // _DAY_US


def _values(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Return the values of a column of fixed width without a copy. The values of nulls are undefined."""
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _masked(values: npt.NDArray[Any], array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return `values` with the type `type_`, and null where `array` is null."""
    storage = pa.int32() if type_ in (pa.date32(), pa.int32()) else type_
    mask = ~_valid(array) if array.null_count else None
    return pa.array(values.astype(storage.to_pandas_dtype()), storage, mask=mask).cast(type_)
