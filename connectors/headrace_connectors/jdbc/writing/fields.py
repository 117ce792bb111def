"""Determines the columns that a record is written to, and reads their values from batches. This module does no I/O.

The rules, and the texts of errors that users search for, are those of Confluent's JDBC sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.api.errors import DataError
from headrace.data.batch import SinkBatch
from headrace.data.columns import Columns, column_items
from headrace.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA, Schema, Type
from headrace.data.struct import row_converter
from headrace_connectors.jdbc.sink_config import KAFKA_KEY_COLUMNS, JdbcSinkConfig

Values = Sequence[Any]


class Column(NamedTuple):
    """A column of a table that records are written to."""

    name: str
    schema: Schema
    is_key: bool
    is_timestamp: bool = False
    """Whether the field contains the time since the epoch (see timestamp.fields.list)."""


class RecordColumns(NamedTuple):
    """The columns of records with one key schema and one value schema."""

    columns: tuple[Column, ...]
    read: tuple[Callable[[SinkBatch], Values], ...]
    """For each column, a function that returns its values in a batch."""

    def keys(self) -> RecordColumns:
        """Return only the primary key's columns."""
        kept = [index for index, column in enumerate(self.columns) if column.is_key]
        return RecordColumns(tuple(self.columns[index] for index in kept), tuple(self.read[index] for index in kept))


class ColumnPlanner:
    """Determines and caches the columns for each pair of key schema and value schema."""

    def __init__(self, config: JdbcSinkConfig) -> None:
        self._config = config
        self._mode = config.pk_mode.lower()
        self._plans: dict[tuple[Schema | None, Schema | None], RecordColumns] = {}

    def plan(self, table: str, key_schema: Schema | None, value_schema: Schema | None) -> RecordColumns:
        """Return the columns of records with these schemas. For deletes, `value_schema` is None.

        Raises DataError if the configuration does not allow these schemas.
        """
        plan = self._plans.get((key_schema, value_schema))
        if plan is None:
            plan = self._plans[key_schema, value_schema] = self._plan(table, key_schema, value_schema)
        return plan

    def _plan(self, table: str, key_schema: Schema | None, value_schema: Schema | None) -> RecordColumns:
        keys = {column.name: (column, read) for column, read in self._keys(table, key_schema, value_schema)}
        values = {
            column.name: (column, read)
            for column, read in self._value_fields(value_schema)
            if column.name not in keys and self._wanted(column.name)
        }
        found = [*keys.values(), *values.values()]
        if not found:
            raise DataError(f"No fields found using key and value schemas for table: {table}")
        return RecordColumns(tuple(column for column, _ in found), tuple(read for _, read in found))

    def _wanted(self, name: str) -> bool:
        return not self._config.fields_whitelist or name in self._config.fields_whitelist

    def _keys(self, table: str, key_schema: Schema | None, value_schema: Schema | None) -> list[_Reader]:
        if self._mode == "none":
            return []
        if self._mode == "kafka":
            return self._kafka_keys()
        if self._mode == "record_value":
            return self._keys_from_value(table, value_schema)
        return self._keys_from_key(table, key_schema)

    def _kafka_keys(self) -> list[_Reader]:
        # Transforms may give records of several topics the same topic, so only the original coordinates are unique.
        topic, partition, offset = self._config.pk_fields or KAFKA_KEY_COLUMNS
        return [
            (Column(topic, STRING_SCHEMA, True), lambda batch: [batch.original_topic] * len(batch)),
            (Column(partition, INT32_SCHEMA, True), lambda batch: [batch.original_partition] * len(batch)),
            (Column(offset, INT64_SCHEMA, True), lambda batch: list(batch.original_offsets)),
        ]

    def _keys_from_key(self, table: str, schema: Schema | None) -> list[_Reader]:
        names = self._config.pk_fields
        if schema is None:
            raise DataError(f"PK mode for table '{table}' is RECORD_KEY, but record key schema is missing")
        if schema.type.is_primitive:
            if len(names) != 1:
                raise DataError(
                    "Need exactly one PK column defined since the key schema for records is a primitive type, "
                    f"defined columns are: [{', '.join(names)}]"
                )
            return [(Column(names[0], schema, True), lambda batch: batch.keys or [None] * len(batch))]
        if schema.type is not Type.STRUCT:
            raise DataError(f"Key schema must be primitive type or Struct, but is of type: {schema.type.name}")
        return self._struct_keys(table, schema, "key", _key_field)

    def _keys_from_value(self, table: str, schema: Schema | None) -> list[_Reader]:
        if schema is None:
            raise DataError(f"PK mode for table '{table}' is RECORD_VALUE, but record value schema is missing")
        if schema.type is Type.STRING:
            return [(Column(self._config.string_column, schema, True), lambda batch: batch.values)]
        return self._struct_keys(table, schema, "value", _value_field)

    def _struct_keys(self, table: str, schema: Schema, side: str, read: Any) -> list[_Reader]:
        names = self._config.pk_fields or [field.name for field in schema.fields]
        missing = [name for name in names if schema.field(name) is None]
        if missing:
            raise DataError(
                f"PK mode for table '{table}' is RECORD_{side.upper()} with configured PK fields "
                f"[{', '.join(names)}], but record {side} schema does not contain field: {missing[0]}"
            )
        return [self._field(schema, name, True, read) for name in names]

    def _value_fields(self, schema: Schema | None) -> list[_Reader]:
        if schema is None:
            return []
        if schema.type is Type.STRING:
            return [(Column(self._config.string_column, schema, False), lambda batch: batch.values)]
        return [self._field(schema, field.name, False, _value_field) for field in schema.fields]

    def _field(self, schema: Schema, name: str, is_key: bool, read: Any) -> _Reader:
        field = schema.fields[schema.index_of(name)]
        is_timestamp = not is_key and name in self._config.timestamp_fields_list
        if is_timestamp and field.schema.type not in (Type.INT64, Type.STRING):
            raise DataError(
                f"timestamp.fields.list: field {name} must be INT64 or STRING, found: {field.schema.type.name}"
            )
        default = field.schema.default if self._config.replace_null_with_default else None
        get = read(field.index, row_converter(field.schema)(default))
        return Column(name, field.schema, is_key, is_timestamp), get


_Reader = tuple[Column, Callable[[SinkBatch], Values]]


def _key_field(index: int, default: Any) -> Callable[[SinkBatch], Values]:
    return lambda batch: _items(batch.keys or [], index, default)


def _value_field(index: int, default: Any) -> Callable[[SinkBatch], Values]:
    def read(batch: SinkBatch) -> Values:
        compact = batch.compact
        if isinstance(compact, Columns):  # the values of structs, so not maps
            return _or_default(column_items(compact.columns[index], len(compact)), default)
        return _items(batch.values, index, default)

    return read


def _items(rows: Values, index: int, default: Any) -> Values:
    return _or_default([row[index] for row in rows], default)


def _or_default(values: Values, default: Any) -> Values:
    return values if default is None else [default if value is None else value for value in values]
