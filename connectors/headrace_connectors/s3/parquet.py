"""The Parquet format of objects, written with PyArrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.errors import DataError, RecordErrors
from headrace.data.json_encoding import encode_schema
from headrace.data.json_values import EncodingOptions
from headrace.data.logical import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME, scale_of
from headrace.data.schema import Schema, Type
from headrace.data.struct import row_converter
from headrace_connectors.common.parquet_rows import SCHEMA_METADATA
from headrace_connectors.s3.formats import FileFormat
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.spool import Spool

_GROUP_ROWS = 10_000
_SMALL_ROWS, _SMALL_BATCHES = 1000, 64
_DECIMAL_DIGITS = 38
_TYPES = {
    Type.INT8: pa.int8(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT32: pa.float32(),
    Type.FLOAT64: pa.float64(),
    Type.BOOLEAN: pa.bool_(),
    Type.STRING: pa.string(),
    Type.BYTES: pa.binary(),
}
_LOGICAL = {DATE_NAME: pa.date32(), TIME_NAME: pa.time32("ms"), TIMESTAMP_NAME: pa.timestamp("ms", tz="UTC")}


class ArrowRows(Sequence[Any]):
    """Rows with one schema, stored as an Arrow batch. A slice is also an `ArrowRows`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a slice of the rows."""
        start, stop, _ = index.indices(len(self))
        return ArrowRows(self.batch.slice(start, stop - start))


def encode_rows(schema: Schema | None, values: Sequence[Any], replaces_null: bool) -> Sequence[Any]:
    """Return rows as an Arrow batch. Raises RecordErrors with all rows that Parquet cannot represent.

    If `replaces_null` is true, the default of a field replaces null.
    """
    if schema is None or schema.type is not Type.STRUCT:
        found = "values without a schema" if schema is None else f"values of type {schema.type.name}"
        error = DataError(f"ParquetFormat needs structs with a schema, found {found}")
        raise RecordErrors(dict.fromkeys(range(len(values)), error))
    try:
        arrow = arrow_schema(schema)
    except DataError as error:
        raise RecordErrors(dict.fromkeys(range(len(values)), error)) from None
    fills = _column_fillers(schema) if replaces_null else {}
    try:
        return _encode(arrow, values, fills)
    except DataError:
        errors: dict[int, Exception] = {}
        for index, value in enumerate(values):
            try:
                _encode(arrow, [value], fills)
            except DataError as error:
                errors[index] = error
        raise RecordErrors(errors) from None


def _encode(schema: pa.Schema, rows: Sequence[Any], fills: _ColumnFillers) -> ArrowRows:
    columns: list[Any] = list(zip(*rows, strict=True))
    for index, (is_primitive, fill) in fills.items():
        if not is_primitive or None in columns[index]:
            columns[index] = list(map(fill, columns[index]))
    arrays = [_array(field, values) for field, values in zip(schema, columns, strict=True)]
    return ArrowRows(pa.RecordBatch.from_arrays(arrays, schema=schema))


_ColumnFillers = dict[int, tuple[bool, Callable[[Any], Any]]]


@lru_cache(maxsize=1000)
def _column_fillers(schema: Schema) -> _ColumnFillers:
    """Return, for each column that may contain defaults: (whether its type is primitive, `_default_filler`)."""
    fills = [(field, _default_filler(field.schema)) for field in schema.fields]
    return {field.index: (field.schema.type.is_primitive, fill) for field, fill in fills if fill is not None}


def _default_filler(schema: Schema) -> Callable[[Any], Any] | None:
    """Return a function that replaces null with the default in a value of this schema and in its parts.

    Return None if the schema contains no default.
    """
    default = row_converter(schema)(schema.default)
    fill_parts = _parts_filler(schema)
    if default is None:
        return None if fill_parts is None else lambda value: None if value is None else fill_parts(value)
    if fill_parts is None:
        return lambda value: default if value is None else value
    return lambda value: fill_parts(default if value is None else value)


def _parts_filler(schema: Schema) -> Callable[[Any], Any] | None:
    """Return a function that replaces null with defaults in the parts of a value that is not null, or None."""
    if schema.type is Type.STRUCT:
        fills = {field.index: _default_filler(field.schema) for field in schema.fields}
        found = {index: fill for index, fill in fills.items() if fill is not None}
        if not found:
            return None
        return lambda row: tuple(found[at](item) if at in found else item for at, item in enumerate(row))
    item_fill = None if schema.value_schema is None else _default_filler(schema.value_schema)
    if item_fill is None:
        return None
    if schema.type is Type.ARRAY:
        return lambda items: list(map(item_fill, items))
    return lambda items: {key: item_fill(item) for key, item in items.items()}


@lru_cache(maxsize=1000)
def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema for a struct schema. Its metadata contains the Connect schema. Raises DataError."""
    if not schema.fields:
        raise DataError("ParquetFormat cannot store a struct without fields")
    metadata = {SCHEMA_METADATA: encode_schema(schema, EncodingOptions())}
    return pa.schema([_field(field.name, field.schema) for field in schema.fields], metadata)


class ParquetFormat(FileFormat):
    """Writes Parquet files with one column for each field of the values, in row groups of 10,000 rows.

    Each file has two spools. One spool buffers the row groups of the file, and the other spool buffers the rows of the
    incomplete row group. The task's memory limit (`buffer.memory.bytes`) applies to both spools.
    """

    def __init__(self, spool: Spool, config: S3SinkConfig) -> None:
        self._codec = config.parquet_codec.lower()
        self._file = _SpoolFile(spool)
        self._waiting = spool.another()
        self._sizes: list[int] = []
        """The bytes of each waiting batch."""
        self._small: list[pa.RecordBatch] = []
        """Batches that are too small to be encoded one by one. They follow the batches in `_waiting`."""
        self._rows = 0
        self._small_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None

    def append(self, schema: Schema | None, encoded: Sequence[Any]) -> None:
        """Append the encoded rows, and write a row group whenever there are enough rows for one."""
        assert isinstance(encoded, ArrowRows)
        batch = encoded.batch
        self._schema = batch.schema
        while self._rows + batch.num_rows >= _GROUP_ROWS:
            missing = _GROUP_ROWS - self._rows
            self._write_group(batch.slice(0, missing))
            batch = batch.slice(missing)
        if batch.num_rows:
            self._rows += batch.num_rows
            self._small.append(batch)
            self._small_rows += batch.num_rows
            if self._small_rows >= _SMALL_ROWS or len(self._small) >= _SMALL_BATCHES:
                self._spool_small()

    def _spool_small(self) -> None:
        data = _one_batch(self._small).serialize().to_pybytes()
        self._waiting.append(data)
        self._sizes.append(len(data))
        self._small = []
        self._small_rows = 0

    def _write_group(self, last: pa.RecordBatch | None) -> None:
        """Write all buffered rows, followed by the rows in `last`, as a row group."""
        assert self._schema is not None
        batches = []
        for size in self._sizes:
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(self._waiting.read(0, size)), self._schema))
            self._waiting.remove(size)
        batches += self._small + ([] if last is None else [last])
        self._sizes, self._small, self._small_rows, self._rows = [], [], 0, 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, compression=self._codec)
        # One chunk per column: the pages of the file must not depend on the batches in which the rows arrived.
        table = pa.Table.from_batches([_one_batch(batches)])
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)

    def finish(self) -> None:
        """Write the last row group and the footer."""
        if self._rows:
            self._write_group(None)
        if self._writer is not None:
            self._writer.close()
        self._waiting.close()

    def discard(self) -> None:
        """Discard the buffered rows."""
        self._waiting.close()


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0]


class _SpoolFile(io.RawIOBase):
    """A file that appends to a spool."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        copied = bytes(data)
        self._spool.append(copied)
        self._position += len(copied)
        return len(copied)

    def tell(self) -> int:
        return self._position


def _array(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array([_dicts(field.type, value) for value in values] if _nested(field.type) else values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        found = sorted({type(value).__name__ for value in values if value is not None})
        raise DataError(
            f"field {field.name} cannot be written as Parquet's {field.type}: {error} "
            f"(types of the values: {', '.join(found)})"
        ) from error


def _nested(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_) or pa.types.is_list(type_) or pa.types.is_map(type_))


def _dicts(type_: pa.DataType, value: Any) -> Any:
    """Return a value in which structs are dictionaries, as PyArrow expects."""
    if value is None or not _nested(type_):
        return value
    if pa.types.is_struct(type_):
        return {field.name: _dicts(field.type, item) for field, item in zip(type_, value, strict=True)}
    if pa.types.is_list(type_):
        return [_dicts(type_.value_type, item) for item in value]
    return [(_dicts(type_.key_type, name), _dicts(type_.item_type, item)) for name, item in value.items()]


def _field(name: str, schema: Schema) -> pa.Field:
    if schema.type is Type.STRUCT and not schema.fields:
        raise DataError(f"field {name}: ParquetFormat cannot store a struct without fields")
    return pa.field(name, _type(schema), nullable=schema.optional)


def _type(schema: Schema) -> pa.DataType:
    if schema.name == DECIMAL_NAME:
        return pa.decimal128(_DECIMAL_DIGITS, scale_of(schema))
    if schema.name in _LOGICAL:
        return _LOGICAL[schema.name]
    if schema.type is Type.STRUCT:
        return pa.struct([_field(field.name, field.schema) for field in schema.fields])
    if schema.type is Type.ARRAY and schema.value_schema is not None:
        return pa.list_(_field("element", schema.value_schema))
    if schema.type is Type.MAP and schema.key_schema is not None and schema.value_schema is not None:
        return pa.map_(_field("key", schema.key_schema).type, _field("value", schema.value_schema))
    return _TYPES[schema.type]
