"""Record layouts, which define a topic's columns and how payloads are parsed into these columns.

A topic's record layout is declared in the configuration, or learned from the first record that has a
schema with the columns of the topic's table. If the table does not exist yet, it gets the columns of
the first record. A later schema with the same columns may have other defaults. The record layout
then has one variant for each set of defaults, and each record is parsed with its schema's variant.
A schema with other columns is rejected, and its records are bad records. This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import (
    STRING,
    ColumnType,
    SchemaError,
    TableColumn,
    describe_changes,
    leaf_types,
    parse_schema,
    table_columns,
    with_defaults_of,
    without_defaults,
)
from headrace_connectors.lakehouse.envelope import schema_id_of

_CHANGES_SHOWN = 8
METADATA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """How to parse the payloads of a topic into columns.

    If `text` is true, a payload is the string of the only column, and `encoded` and `wrapped` are false. Otherwise, a
    payload is JSON. It has JsonConverter's encoding if `encoded` is true, and Spark's JSON format if `encoded` is
    false. If `wrapped` is true, a payload is a single value and not an object with one member per column.
    `decimals_numeric` is true if decimals are numbers, false if they are base64, and None until a decimal has been
    read.
    """

    columns: tuple[TableColumn, ...]
    encoded: bool = False
    wrapped: bool = False
    text: bool = False
    decimals_numeric: bool | None = None


STRING_LAYOUT = RecordLayout((TableColumn("value", STRING),), text=True)


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """The topic, partition and offset of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class LayoutVariant:
    """A variant of a topic's record layout.

    If `schema_ids` is empty, Spark uses `layout` for all records of the topic. Otherwise, Spark uses `layout` only for
    records with these schema ids.
    """

    layout: RecordLayout
    schema_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RejectedSchema:
    """A schema whose records cannot become rows, and the reason.

    `columns_mismatch` is true if the schema is valid, but its columns are not the table's columns.
    """

    reason: str
    columns_mismatch: bool


class _ColumnsMismatchError(SchemaError):
    """The schema is valid, but its columns differ from the table's columns."""


@dataclass(slots=True)
class _LearnedLayout:
    """The record layout learned from a topic's records.

    The topic's schemas may have different columns (with different defaults) and different `RecordLayout.wrapped`.
    `schema_ids` maps each combination (columns, wrapped) to the ids of the schemas that have it. `required` maps each
    schema id to the required top-level columns of the schema.
    """

    layout: RecordLayout
    schema_ids: dict[tuple[tuple[TableColumn, ...], bool], set[int]] = field(default_factory=dict)
    required: dict[int, frozenset[str]] = field(default_factory=dict)


class RecordLayouts:
    """The record layouts of a task's topics. This class is not thread-safe: only the loader uses it."""

    def __init__(
        self,
        *,
        root: Path,
        value: str,
        declared: Mapping[str, tuple[TableColumn, ...]],
        declared_default: tuple[TableColumn, ...] | None,
        metadata_columns: bool,
        replace_null_with_default: bool,
        decimals_numeric: bool,
    ) -> None:
        self._root = root
        self._value = value
        self._declared = declared
        self._declared_default = declared_default
        self._metadata_columns = metadata_columns
        self._defaults = replace_null_with_default
        self._decimals_numeric = decimals_numeric
        self._learned: dict[str, _LearnedLayout] = {}
        self._rejected: dict[str, dict[int, RejectedSchema]] = {}
        self._table_types: dict[str, Mapping[str, str]] = {}

    def set_table_columns(self, table: str, types: Mapping[str, str]) -> None:
        """Store the columns of an existing table.

        `types` has the format that `leaf_types` returns. If lakehouse.metadata.columns=true, `types` does not contain
        the metadata columns.
        """
        self._table_types[table] = types

    def layout_of(self, topic: str, table: str) -> RecordLayout | None:
        """Return a topic's record layout, or None if it is not known yet.

        Raises ConnectError if the configuration must declare the columns but does not.
        """
        if self._value == "string":
            return STRING_LAYOUT
        if self._value == "json":
            columns = self._declared.get(table, self._declared_default)
            if columns is None:
                raise ConnectError(
                    f"topic {topic}: the records have no schema, so the table's columns must be configured: set"
                    f" lakehouse.schema or lakehouse.table.{table}.schema to Spark DDL (id BIGINT, name STRING, ...)"
                )
            return RecordLayout(columns)
        learned = self._learned.get(topic)
        return learned.layout if learned is not None else None

    def variants(self, topic: str, table: str) -> tuple[LayoutVariant, ...]:
        """Return the variants of a topic's record layout, or an empty tuple if it is not known yet."""
        layout = self.layout_of(topic, table)
        if layout is None:
            return ()
        if topic not in self._learned:
            return (LayoutVariant(layout),)
        return tuple(
            LayoutVariant(replace(layout, columns=columns, wrapped=wrapped), frozenset(ids))
            for (columns, wrapped), ids in self._learned[topic].schema_ids.items()
        )

    def schema_ids(self, topic: str) -> frozenset[int]:
        """Return the ids of the schemas whose records can be parsed with the topic's record layout."""
        learned = self._learned.get(topic)
        return frozenset[int]().union(*learned.schema_ids.values()) if learned is not None else frozenset()

    def rejected_schemas(self, topic: str) -> Mapping[int, RejectedSchema]:
        """Return the schemas, by id, whose records cannot become rows of the topic's table."""
        return self._rejected.get(topic, {})

    def required_columns(self, topic: str) -> list[str]:
        """Return the top-level columns that at least one schema of the topic requires."""
        learned = self._learned.get(topic)
        return sorted(frozenset[str]().union(*learned.required.values())) if learned is not None else []

    def required_in_schema(self, topic: str, schema_id: int) -> frozenset[str]:
        """Return the top-level columns that are not optional in a schema and have no default."""
        return self._learned[topic].required.get(schema_id, frozenset())

    def learn_schema(self, topic: str, table: str, schema: str, payload: str | None) -> bool:
        """Add the schema of a record to the topic's record layout.

        If this is the topic's first schema, the record's `payload` determines how decimals are parsed.
        Returns False if the schema is rejected, because it is malformed or does not have the table's
        columns.
        """
        schema_id = schema_id_of(schema.encode())
        try:
            type_ = parse_schema(json.loads(schema))
            columns = table_columns(type_)
            self._check_clash(columns)
            self._check_same(table, leaf_types(columns))
        except SchemaError as error:
            rejected = RejectedSchema(str(error), isinstance(error, _ColumnsMismatchError))
            self._rejected.setdefault(topic, {})[schema_id] = rejected
            return False
        if not self._defaults:
            columns = without_defaults(columns)
        wrapped = type_.kind != "struct"
        learned = self._learned.get(topic)
        if learned is None:
            numeric = decimals_numeric(type_, payload)
            layout = RecordLayout(columns, encoded=True, wrapped=wrapped, decimals_numeric=numeric)
            learned = self._learned[topic] = _LearnedLayout(layout)
        variant = (with_defaults_of(learned.layout.columns, columns), wrapped)
        learned.schema_ids.setdefault(variant, set()).add(schema_id)
        learned.required[schema_id] = frozenset(
            column.name for column in columns if not column.optional and column.default is None
        )
        return True

    def learn_decimal_format(self, topic: str, payload: str) -> bool:
        """Determine from a payload how decimals are encoded, unless the encoding is already known.

        Returns True if the encoding differs from the previously assumed encoding. In this case, all payloads must be
        parsed again.
        """
        learned = self._learned.get(topic)
        if learned is None or learned.layout.decimals_numeric is not None:
            return False
        type_ = ColumnType("struct", fields=learned.layout.columns)
        text = f'{{"value":{payload}}}' if learned.layout.wrapped else payload
        numeric = decimals_numeric(type_, text)
        if numeric is not None:
            learned.layout = replace(learned.layout, decimals_numeric=numeric)
        return numeric is not None and numeric != self._decimals_numeric

    def reads_decimals_as_numbers(self, layout: RecordLayout) -> bool:
        """Whether to parse the decimals of records with this layout as numbers.

        If `layout.decimals_numeric` is None, no decimal has been read yet, and the converter's configuration decides.
        Otherwise, `layout.decimals_numeric` decides.
        """
        return self._decimals_numeric if layout.decimals_numeric is None else layout.decimals_numeric

    def _check_clash(self, columns: tuple[TableColumn, ...]) -> None:
        if not self._metadata_columns:
            return
        reserved = {name.lower() for name in METADATA_COLUMNS}
        for column in columns:
            if column.name.lower() in reserved:
                raise SchemaError(
                    f"the field {column.name!r} has the same name as a metadata column; rename it at the source, or set"
                    " lakehouse.metadata.columns=false"
                )

    def _check_same(self, table: str, types: dict[str, str]) -> None:
        """Raise _ColumnsMismatchError if the table exists and `types` are not the leaf types of its columns.

        If the table does not exist yet, the loader creates it with the columns in `types`.
        """
        before = self._table_types.setdefault(table, types)
        if not self._metadata_columns and before.keys() - types.keys() == set(METADATA_COLUMNS):
            raise ConnectError(
                f"table {self._root / table} has metadata columns ({', '.join(METADATA_COLUMNS)}), but"
                " lakehouse.metadata.columns=false; set it to true, or set another table name"
                " (lakehouse.table.name.format)"
            )
        found = describe_changes(before, types)
        if found:
            raise _ColumnsMismatchError(
                f"the record's columns do not match table {self._root / table}: {', '.join(found[:_CHANGES_SHOWN])}"
                + (f" and {len(found) - _CHANGES_SHOWN} more changes" if len(found) > _CHANGES_SHOWN else "")
            )


def decimals_numeric(type_: ColumnType, payload: str | None) -> bool | None:
    """Return True if the first decimal in a payload is a number, and False if it is base64.

    Returns None if the payload contains no decimal.
    """
    if payload is None or "decimal" not in _kinds(type_):
        return None
    for value in _decimals(type_, json.loads(payload)):
        return not isinstance(value, str)
    return None


def _kinds(type_: ColumnType) -> set[str]:
    children = [child for child in (type_.key, type_.element, *(f.type for f in type_.fields)) if child is not None]
    return {type_.kind}.union(*map(_kinds, children))


def _decimals(type_: ColumnType, value: Any) -> list[Any]:
    if value is None:
        return []
    if type_.kind == "decimal":
        return [value]
    if type_.kind == "struct" and isinstance(value, dict):
        return [found for column in type_.fields for found in _decimals(column.type, value.get(column.name))]
    if type_.kind == "array" and type_.element is not None and isinstance(value, list):
        return [found for item in value for found in _decimals(type_.element, item)]
    if type_.kind == "map" and type_.element is not None and isinstance(value, dict):
        return [found for item in value.values() for found in _decimals(type_.element, item)]
    return []
