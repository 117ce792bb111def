"""The Parquet format of objects, written with PyArrow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.errors import DataError, RecordErrors
from headrace.data.json_encoding import encode_schema
from headrace.data.json_values import EncodingOptions
from headrace.data.logical import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME, scale_of
from headrace.data.schema import Schema, Type
from headrace_connectors.s3.config import S3SinkConfig
from headrace_connectors.s3.formats import FileFormat
from headrace_connectors.s3.parquet_reading import SCHEMA_METADATA
from headrace_connectors.s3.spool import Spool

_GROUP_ROWS = 10_000
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


def check_rows(schema: Schema | None, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values, which are rows. Raises RecordErrors if they are no structs with a schema."""
    if schema is None or schema.type is not Type.STRUCT:
        found = "values without a schema" if schema is None else f"values of type {schema.type.name}"
        error = DataError(f"ParquetFormat needs structs with a schema, found {found}")
        raise RecordErrors(dict.fromkeys(range(len(values)), error))
    return values


class ParquetFormat(FileFormat):
    """One column for each field of the value's schema; row groups of 10,000 rows."""

    def __init__(self, spool: Spool, config: S3SinkConfig) -> None:
        self._codec = config.parquet_codec.lower()
        self._rows: list[tuple[Any, ...]] = []
        self._file = _SpoolFile(spool)
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None

    def append(self, schema: Schema | None, encoded: Sequence[Any]) -> None:
        """Append rows; write a row group when there are enough."""
        if self._schema is None and schema is not None:
            metadata = {SCHEMA_METADATA: encode_schema(schema, EncodingOptions())}
            self._schema = pa.schema([_field(field.name, field.schema) for field in schema.fields], metadata)
        self._rows += encoded
        while len(self._rows) >= _GROUP_ROWS:
            self._write_group(self._rows[:_GROUP_ROWS])
            del self._rows[:_GROUP_ROWS]

    def _write_group(self, rows: list[tuple[Any, ...]]) -> None:
        assert self._schema is not None
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, compression=self._codec)
        columns = list(zip(*rows, strict=True))
        arrays = [_array(field, values) for field, values in zip(self._schema, columns, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=_GROUP_ROWS)

    def finish(self) -> None:
        """Write the last row group and the footer."""
        if self._rows:
            self._write_group(self._rows)
            self._rows = []
        if self._writer is not None:
            self._writer.close()


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
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"field {field.name} cannot be written as Parquet's {field.type}: {error}") from error


def _nested(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_) or pa.types.is_list(type_) or pa.types.is_map(type_))


def _dicts(type_: pa.DataType, value: Any) -> Any:
    """Return a value with rows of structs as dictionaries, which PyArrow expects."""
    if value is None or not _nested(type_):
        return value
    if pa.types.is_struct(type_):
        return {field.name: _dicts(field.type, item) for field, item in zip(type_, value, strict=True)}
    if pa.types.is_list(type_):
        return [_dicts(type_.value_type, item) for item in value]
    return [(_dicts(type_.key_type, name), _dicts(type_.item_type, item)) for name, item in value.items()]


def _field(name: str, schema: Schema) -> pa.Field:
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
        return pa.map_(_type(schema.key_schema), _field("value", schema.value_schema))
    return _TYPES[schema.type]
