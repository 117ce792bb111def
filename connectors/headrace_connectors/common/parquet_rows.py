"""Reads Parquet files as rows with a Connect schema.

A file of the S3 sink contains the Connect schema, including names, versions and defaults. For all other files, the
schema is derived from the types of the columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.errors import DataError
from headrace.data.json_schema import schema_from_json
from headrace.data.logical import (
    DATE_NAME,
    DATE_SCHEMA,
    MILLIS_PER_DAY,
    PYTHON_TYPES,
    TIME_NAME,
    TIME_SCHEMA,
    TIMESTAMP_NAME,
    TIMESTAMP_SCHEMA,
    checked_count,
    decimal_schema,
)
from headrace.data.schema import Schema, Type, array, map_of, struct

SCHEMA_METADATA = b"headrace.connect.schema"
_TYPES = {
    pa.int8(): Type.INT8,
    pa.int16(): Type.INT16,
    pa.int32(): Type.INT32,
    pa.int64(): Type.INT64,
    pa.uint8(): Type.INT16,
    pa.uint16(): Type.INT32,
    pa.uint32(): Type.INT64,
    pa.float16(): Type.FLOAT32,
    pa.float32(): Type.FLOAT32,
    pa.float64(): Type.FLOAT64,
    pa.bool_(): Type.BOOLEAN,
    pa.string(): Type.STRING,
    pa.large_string(): Type.STRING,
    pa.binary(): Type.BYTES,
    pa.large_binary(): Type.BYTES,
}
_GROUP_ROWS = 5_000
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class ParquetRows:
    """The rows of one Parquet file, which are read one after another."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read the footer. Raises DataError if the file is not a Parquet file or a column has an unsupported type."""
        try:
            self._file = pq.ParquetFile(file)
            self._arrow = _without_dictionaries(self._file.schema_arrow)
            self.schema = _stored_schema(self._arrow) or _struct(self._arrow)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"not a Parquet file: {error}") from error
        self.count: int = self._file.metadata.num_rows
        self._rows = self._all_rows()
        self._position = 0
        self._error: DataError | None = None
        self.is_at_end = False
        """Whether `read` has returned all rows."""

    def skip(self, count: int) -> None:
        """Skip the first `count` rows of the file. Row groups that contain only skipped rows are not read."""
        group, metadata = 0, self._file.metadata
        while group < metadata.num_row_groups and (rows := metadata.row_group(group).num_rows) <= count:
            count -= rows
            self._position += rows
            group += 1
        self._rows = self._all_rows(group)
        while count:
            skipped = len(self.read(min(count, _GROUP_ROWS)))
            if not skipped:
                return
            count -= skipped

    def read(self, count: int) -> list[tuple[Any, ...]]:
        """Return the next `count` rows, or fewer at the end of the file or before a row that cannot be read.

        Raises DataError if the next row cannot be read. In this case, no later row can be read either.
        """
        if self._error is not None:
            raise self._error
        found: list[tuple[Any, ...]] = []
        try:
            found.extend(islice(self._rows, count))
        except Exception as error:  # PyArrow raises many kinds of errors for damaged files
            number = self._position + len(found) + 1
            self._error = DataError(f"cannot read row {number} or a row after it: {error}")
            self._error.__cause__ = error
            if not found:
                raise self._error from error
        else:
            self.is_at_end = len(found) < count
        self._position += len(found)
        return found

    def _all_rows(self, first_group: int = 0) -> Iterator[tuple[Any, ...]]:
        converters = [_converter(field.type) for field in self._arrow]

        def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
            columns = []
            for column, field, convert in zip(batch.columns, self._arrow, converters, strict=True):
                try:
                    values = column.cast(field.type).cast(_with_integers(field.type)).to_pylist()
                    columns.append(values if convert is None else [convert(value) for value in values])
                except (ValueError, OverflowError, DataError) as error:
                    raise DataError(f"column {field.name} ({field.type}): {error}") from error
            return zip(*columns, strict=True)

        for batch in self._batches(first_group):
            try:
                rows = rows_of(batch)
            except DataError:  # return the rows before the invalid one
                rows = chain.from_iterable(rows_of(batch.slice(index, 1)) for index in range(batch.num_rows))
            yield from rows

    def _batches(self, first_group: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows, beginning with the row group at index `first_group`.

        If a row group is damaged, the rows of all earlier row groups are yielded before the error is raised.
        """
        groups, done = range(first_group, self._file.num_row_groups), 0
        try:
            for batch in self._file.iter_batches(batch_size=_GROUP_ROWS, row_groups=groups):
                yield batch
                done += batch.num_rows
            return
        except (pa.ArrowException, OSError):
            pass  # the row group that is damaged raises the error again
        for group in groups:  # reading small row groups one by one is slow
            for batch in self._file.iter_batches(batch_size=_GROUP_ROWS, row_groups=[group]):
                skipped = min(done, batch.num_rows)
                done -= skipped
                yield batch.slice(skipped)


def _with_integers(type_: pa.DataType) -> pa.DataType:
    """Return the type with integers instead of dates, times and timestamps, which may exceed Python's `datetime`."""
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with_integers(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_with_integers(type_.key_type), type_.item_field.with_type(_with_integers(type_.item_type)))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        element = type_.value_field.with_type(_with_integers(type_.value_type))
        if pa.types.is_fixed_size_list(type_):
            return pa.list_(element, type_.list_size)
        return pa.large_list(element) if pa.types.is_large_list(type_) else pa.list_(element)
    return type_


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def _stored_schema(schema: pa.Schema) -> Schema | None:
    text = (schema.metadata or {}).get(SCHEMA_METADATA)
    return None if text is None else schema_from_json(json.loads(text), _default)


def _default(schema: Schema, tree: Any) -> Any:
    from headrace_connectors.common.defaults import default_from_json

    return default_from_json(schema, tree)


def _struct(fields: Any) -> Schema:
    return struct([(field.name, _schema(field.name, field.type, field.nullable)) for field in fields])


def _schema(name: str, type_: pa.DataType, optional: bool) -> Schema:
    """Return the Connect schema of a column with the Arrow type `type_`. Error messages contain the column's `name`."""
    if type_ in _TYPES:
        return Schema(_TYPES[type_], optional=optional)
    if pa.types.is_decimal(type_):
        return decimal_schema(type_.scale, optional=optional)
    if pa.types.is_date(type_):
        return DATE_SCHEMA.replace(optional=optional)
    if pa.types.is_time(type_):
        return TIME_SCHEMA.replace(optional=optional)
    if pa.types.is_timestamp(type_):
        return TIMESTAMP_SCHEMA.replace(optional=optional)
    if pa.types.is_struct(type_):
        return _struct(type_).replace(optional=optional)
    if pa.types.is_map(type_):
        key = _schema(f"{name}.key", type_.key_type, False)
        return map_of(key, _schema(f"{name}.value", type_.item_type, type_.item_field.nullable), optional=optional)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return array(_schema(f"{name}.element", type_.value_type, type_.value_field.nullable), optional=optional)
    if pa.types.is_fixed_size_binary(type_):
        return Schema(Type.BYTES, optional=optional)
    if type_ == pa.uint64():
        return decimal_schema(0, optional=optional)  # as Spark; INT64 is too small
    if pa.types.is_null(type_):
        return Schema(Type.STRING, optional=True)
    raise DataError(f"column {name} has the type {type_}, which has no equivalent in Connect")


def _converter(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts PyArrow's Python values to row values, or None if no conversion is needed."""
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        inner = [_converter(field.type) or _same for field in type_]

        def to_row(value: Any) -> Any:
            if value is None:
                return None
            return tuple(convert(value[name]) for name, convert in zip(names, inner, strict=True))

        return to_row
    if pa.types.is_map(type_):
        key, item = _converter(type_.key_type) or _same, _converter(type_.item_type) or _same
        return lambda value: None if value is None else {key(name): item(each) for name, each in value}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        element = _converter(type_.value_type)
        if element is None:
            return None
        return lambda value: None if value is None else [element(each) for each in value]
    if pa.types.is_timestamp(type_):
        return _temporal(TIMESTAMP_NAME, _PER_SECOND[type_.unit], 1000)
    if pa.types.is_time(type_):
        return _temporal(TIME_NAME, _PER_SECOND[type_.unit], 1000)
    if pa.types.is_date(type_):
        return _temporal(DATE_NAME, 1 if type_ == pa.date32() else MILLIS_PER_DAY, 1)
    if type_ == pa.uint64():
        return lambda value: None if value is None else Decimal(value)
    return None


def _same(value: Any) -> Any:
    return value


def _temporal(name: str, unit: int, target: int) -> Callable[[Any], Any]:
    """Return a function that converts a number to a value of the logical type `name`, rounded down.

    The unit of the number is 1/`unit`, and the unit of the value is 1/`target`.
    """
    if unit == target and name != TIME_NAME:
        type_ = PYTHON_TYPES[name]
        return lambda value: None if value is None else type_(value)
    return lambda value: None if value is None else checked_count(name, value * target // unit)
