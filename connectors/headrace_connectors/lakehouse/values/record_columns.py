"""Columns of a record besides its value: metadata, key and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.data.batch import SinkBatch
from headrace.data.errors import DataError
from headrace.data.headers import Header
from headrace.data.schema import Schema, Type
from headrace.data.value_text import convert_to_string
from headrace_connectors.lakehouse.column_types import STRING, ColumnType, SchemaError, TableColumn
from headrace_connectors.lakehouse.values.arrow_types import TIMESTAMP, arrow_type
from headrace_connectors.lakehouse.values.json_columns import JsonColumns
from headrace_connectors.lakehouse.values.options import (
    HEADERS_TYPE,
    KEY_COLUMN,
    KEY_FIELD_PREFIX,
    METADATA_COLUMNS,
    METADATA_NAMES,
    RowOptions,
)
from headrace_connectors.lakehouse.values.schema_values import schema_column_converter
from headrace_connectors.lakehouse.values.schemas import column_type

_INFERRED = ((bool, "boolean"), (int, "int64"), (float, "float64"))


def record_columns(batch: SinkBatch, options: RowOptions) -> tuple[TableColumn, ...]:
    """Return the columns of metadata, key and headers of a new table for records of this batch. Raises SchemaError."""
    columns: tuple[TableColumn, ...] = METADATA_COLUMNS if options.metadata_columns else ()
    if options.key_columns != "none":
        columns += key_columns(batch, options)
    if options.headers_column is not None:
        columns += (TableColumn(options.headers_column, HEADERS_TYPE),)
    return columns


def key_columns(batch: SinkBatch, options: RowOptions) -> tuple[TableColumn, ...]:
    """Return the columns of the record's key."""
    schema = batch.key_schema
    if options.key_columns == "fields" and schema is not None and schema.type is Type.STRUCT:
        type_ = column_type(schema, "key")
        fields = (TableColumn(KEY_FIELD_PREFIX + field.name, field.type, field.optional) for field in type_.fields)
        return options.stored(tuple(fields))
    if schema is not None:
        return options.stored((TableColumn(KEY_COLUMN, column_type(schema, "key"), schema.optional),))
    first = next((key for key in batch.keys or () if key is not None), None)
    if options.key_columns == "fields" and isinstance(first, Mapping) and first:
        return tuple(TableColumn(f"{KEY_FIELD_PREFIX}{name}", _inferred(value)) for name, value in first.items())
    return (TableColumn(KEY_COLUMN, STRING),)


def _inferred(value: Any) -> ColumnType:
    """Return the type of a key's field without a schema. Strings, nulls and nested values become strings."""
    return next((ColumnType(kind) for class_, kind in _INFERRED if isinstance(value, class_)), STRING)


class KeyConverter:
    """Converts the keys of batches with one key schema to the key columns of a table."""

    def __init__(self, schema: Schema | None, columns: Sequence[TableColumn]) -> None:
        self._columns = columns
        self._schema = schema
        self._json = JsonColumns(columns) if schema is None else None

    def convert(self, batch: SinkBatch, bad: dict[int, str]) -> list[pa.Array]:
        """Return one Arrow array per key column. Keys that do not fit are added to `bad`."""
        keys = batch.keys
        if keys is None:
            return [pa.nulls(len(batch), arrow_type(column.type)) for column in self._columns]
        schema = self._schema
        if schema is None or self._json is not None:
            assert self._json is not None
            return self._json.convert([self._as_map(key) for key in keys], bad)
        if [column.name for column in self._columns] == [KEY_COLUMN]:
            return [schema_column_converter(KEY_COLUMN, self._columns[0].type, schema).convert(keys, bad)]
        arrays = []
        for column in self._columns:
            field = schema.field(column.name.removeprefix(KEY_FIELD_PREFIX))
            assert field is not None
            values = [None if key is None else key[field.index] for key in keys]
            arrays.append(schema_column_converter(column.name, column.type, field.schema).convert(values, bad))
        return arrays

    def _as_map(self, key: Any) -> Any:
        """Return {column: value} for a key without a schema."""
        if key is None:
            return None
        if [column.name for column in self._columns] == [KEY_COLUMN]:
            return {KEY_COLUMN: key}
        return {f"{KEY_FIELD_PREFIX}{name}": item for name, item in key.items()} if isinstance(key, Mapping) else key


def metadata_arrays(batch: SinkBatch) -> dict[str, pa.Array]:
    """Return the metadata columns by name. Topic, partition and offset are those that the records had in Kafka."""
    count = len(batch)
    arrays = (
        pa.repeat(pa.scalar(batch.original_topic), count),
        pa.repeat(pa.scalar(batch.original_partition, pa.int32()), count),
        _integers(batch.original_offsets),
        _timestamps(batch),
    )
    return {column.name: array for column, array in zip(METADATA_COLUMNS, arrays, strict=True)}


def _integers(values: Sequence[int]) -> pa.Array:
    if isinstance(values, range):
        return pa.array(np.arange(values.start, values.stop, values.step, dtype=np.int64))
    return pa.array(values, pa.int64())


def _timestamps(batch: SinkBatch) -> pa.Array:
    """Return the timestamps. A timestamp that does not fit 64 bits in microseconds becomes null."""
    timestamps = batch.timestamps
    if isinstance(timestamps, list):
        millis = pa.array(timestamps, pa.int64())
    else:
        millis = pa.repeat(pa.scalar(timestamps, pa.int64()), len(batch))
    try:
        return pc.multiply_checked(millis, 1000).view(TIMESTAMP)
    except pa.ArrowInvalid:
        limit = (2**63 - 1) // 1000
        fits = pc.and_(pc.greater_equal(millis, -limit), pc.less_equal(millis, limit))
        return pc.multiply(pc.if_else(fits, millis, None), 1000).view(TIMESTAMP)


def header_array(batch: SinkBatch) -> pa.Array:
    """Return the column of headers. A record without headers has an empty array."""
    headers: Sequence[Sequence[Header]] = batch.headers or [()] * len(batch)
    cache: dict[int, list[tuple[str, bytes | None]]] = {}
    rows = []
    for each in headers:
        found = cache.get(id(each))
        if found is None:
            found = cache[id(each)] = [(header.key, _header_bytes(header)) for header in each]
        rows.append(found)
    return pa.array(rows, arrow_type(HEADERS_TYPE))


def _header_bytes(header: Header) -> bytes | None:
    """Return bytes as they are, and any other value as SimpleHeaderConverter's text."""
    value = header.value
    if value is None or isinstance(value, bytes):
        return value
    try:
        text = convert_to_string(value, header.schema)
    except DataError:  # a transform may add a header with an object of any class
        text = str(value)
    return text.encode(errors="replace")


def check_names_differ(value: Sequence[TableColumn], record: Sequence[TableColumn]) -> None:
    """Raise SchemaError if a value's column has the name of a column of metadata, key or headers."""
    reserved = {column.name.lower(): column for column in record}
    for column in value:
        found = reserved.get(column.name.lower())
        if found is None:
            continue
        if found.name in METADATA_NAMES:
            raise SchemaError(
                f"the field {column.name!r} has the same name as a metadata column; rename it at the source, or set"
                " lakehouse.metadata.columns=false"
            )
        raise SchemaError(
            f"the field {column.name!r} has the same name as the column of the record's"
            + (
                " headers; set another lakehouse.headers.column"
                if found.type == HEADERS_TYPE
                else " key; rename it at the source, or set another lakehouse.key.columns"
            )
        )
