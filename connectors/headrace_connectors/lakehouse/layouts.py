"""What each topic's records look like: which columns they have and how their payload is read. Pure.

A topic's layout is learned from its first record with a schema whose columns are those of the topic's table (or it is
declared). The table knows best: where it exists its columns count, whatever record comes first. Another schema text of
the same columns is a variant with defaults of its own; one of other columns is refused, and so are its records.
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
    Column,
    ColumnType,
    SchemaError,
    changes,
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
class Layout:
    """How the payload of a topic becomes columns.

    `encoded`: Connect's encodings, else Spark's JSON. `wrapped`: the payload is one value, not an object of columns.
    `decimals_numeric`: decimals come as numbers (True), as base64 (False), or none was seen yet (None).
    """

    columns: tuple[Column, ...]
    encoded: bool = False
    wrapped: bool = False
    text: bool = False
    decimals_numeric: bool | None = None


STRING_LAYOUT = Layout((Column("value", STRING),), text=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands, as errors name it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Variant:
    """Records that are read with one layout: those whose schema has one of these ids (none where there are no ids)."""

    layout: Layout
    schema_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why records of a schema cannot become rows; `other_columns`: they could, in another table."""

    reason: str
    other_columns: bool


class _OtherColumnsError(SchemaError):
    """The schema is sound, and its columns are not the table's."""


@dataclass(slots=True)
class _Learned:
    """`schema_ids` by what a variant may have of its own: the columns' defaults, and whether it is wrapped."""

    layout: Layout
    schema_ids: dict[tuple[tuple[Column, ...], bool], set[int]] = field(default_factory=dict)
    required: dict[int, frozenset[str]] = field(default_factory=dict)


class Layouts:
    """The layouts of a task's topics; owned by its one loader."""

    def __init__(
        self,
        *,
        root: Path,
        value: str,
        declared: Mapping[str, tuple[Column, ...]],
        declared_default: tuple[Column, ...] | None,
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
        self._learned: dict[str, _Learned] = {}
        self._refused: dict[str, dict[int, Refusal]] = {}
        self._table_types: dict[str, Mapping[str, str]] = {}

    def adopt(self, table: str, types: Mapping[str, str]) -> None:
        """Take in the columns of a table that exists, as leaf types without the metadata columns."""
        self._table_types[table] = types

    def find(self, topic: str, table: str) -> Layout | None:
        """Return a topic's layout, None while no record has shown it. Raises ConnectError when none is declared."""
        if self._value == "string":
            return STRING_LAYOUT
        if self._value == "json":
            columns = self._declared.get(table, self._declared_default)
            if columns is None:
                raise ConnectError(
                    f"topic {topic}: records without schemas need declared columns: set lakehouse.schema or"
                    f" lakehouse.table.{table}.schema to Spark DDL (id BIGINT, name STRING, ...)"
                )
            return Layout(columns)
        learned = self._learned.get(topic)
        return learned.layout if learned is not None else None

    def variants(self, topic: str, table: str) -> tuple[Variant, ...]:
        """Return the layouts that a topic's records are read with; none while no record has shown one."""
        layout = self.find(topic, table)
        if layout is None:
            return ()
        if topic not in self._learned:
            return (Variant(layout),)
        return tuple(
            Variant(replace(layout, columns=columns, wrapped=wrapped), frozenset(ids))
            for (columns, wrapped), ids in self._learned[topic].schema_ids.items()
        )

    def schema_ids(self, topic: str) -> frozenset[int]:
        """Return the ids of the schema texts that a topic's layout covers."""
        learned = self._learned.get(topic)
        return frozenset[int]().union(*learned.schema_ids.values()) if learned is not None else frozenset()

    def refused(self, topic: str) -> Mapping[int, Refusal]:
        """Return the ids of the schema texts whose records cannot become rows of the topic's table, and why."""
        return self._refused.get(topic, {})

    def required(self, topic: str) -> list[str]:
        """Return the top columns that are never null in records of one of the topic's schemas at least."""
        learned = self._learned.get(topic)
        return sorted(frozenset[str]().union(*learned.required.values())) if learned is not None else []

    def required_in(self, topic: str, schema_id: int) -> frozenset[str]:
        """Return the top columns that are never null in records of that schema."""
        return self._learned[topic].required.get(schema_id, frozenset())

    def learn(self, topic: str, table: str, schema: str, payload: str | None) -> bool:
        """Take in the schema of a record; False when it is refused, since its columns are not the table's."""
        schema_id = schema_id_of(schema.encode())
        try:
            type_ = parse_schema(json.loads(schema))
            columns = table_columns(type_)
            self._check_clash(columns)
            self._check_same(table, leaf_types(columns))
        except SchemaError as error:
            refusal = Refusal(str(error), isinstance(error, _OtherColumnsError))
            self._refused.setdefault(topic, {})[schema_id] = refusal
            return False
        if not self._defaults:
            columns = without_defaults(columns)
        wrapped = type_.kind != "struct"
        learned = self._learned.get(topic)
        if learned is None:
            numeric = decimals_numeric(type_, payload)
            layout = Layout(columns, encoded=True, wrapped=wrapped, decimals_numeric=numeric)
            learned = self._learned[topic] = _Learned(layout)
        variant = (with_defaults_of(learned.layout.columns, columns), wrapped)
        learned.schema_ids.setdefault(variant, set()).add(schema_id)
        learned.required[schema_id] = frozenset(
            column.name for column in columns if not column.optional and column.default is None
        )
        return True

    def learn_decimals(self, topic: str, payload: str) -> bool:
        """Look how a payload writes decimals when no record showed it before; tell whether that was news."""
        learned = self._learned.get(topic)
        if learned is None or learned.layout.decimals_numeric is not None:
            return False
        type_ = ColumnType("struct", fields=learned.layout.columns)
        text = f'{{"value":{payload}}}' if learned.layout.wrapped else payload
        numeric = decimals_numeric(type_, text)
        if numeric is not None:
            learned.layout = replace(learned.layout, decimals_numeric=numeric)
        return numeric is not None and numeric != self._decimals_numeric

    def reads_decimals_as_numbers(self, layout: Layout) -> bool:
        """Return whether decimals are numbers: as seen, else as the converter is configured."""
        return self._decimals_numeric if layout.decimals_numeric is None else layout.decimals_numeric

    def _check_clash(self, columns: tuple[Column, ...]) -> None:
        if not self._metadata_columns:
            return
        taken = {name.lower() for name in METADATA_COLUMNS}
        for column in columns:
            if column.name.lower() in taken:
                raise SchemaError(
                    f"the field {column.name!r} has the name of a metadata column; rename it at the source, or set"
                    " lakehouse.metadata.columns=false"
                )

    def _check_same(self, table: str, types: dict[str, str]) -> None:
        """Refuse columns that are not the table's; a table that does not exist gets those of its first record."""
        before = self._table_types.setdefault(table, types)
        if not self._metadata_columns and before.keys() - types.keys() == set(METADATA_COLUMNS):
            raise ConnectError(
                f"table {self._root / table} has the metadata columns ({', '.join(METADATA_COLUMNS)}), which"
                " lakehouse.metadata.columns=false leaves out: set it to true, or name another table"
                " (lakehouse.table.name.format)"
            )
        found = changes(before, types)
        if found:
            raise _OtherColumnsError(
                f"the record's columns are not those of table {self._root / table}: {', '.join(found[:_CHANGES_SHOWN])}"
                + (f" and {len(found) - _CHANGES_SHOWN} more changes" if len(found) > _CHANGES_SHOWN else "")
            )


def decimals_numeric(type_: ColumnType, payload: str | None) -> bool | None:
    """Tell whether the first decimal in a payload is a number or base64 text, None when it has none."""
    if payload is None or "decimal" not in _kinds(type_):
        return None
    for value in _decimals(type_, json.loads(payload)):
        return not isinstance(value, str)
    return None


def _kinds(type_: ColumnType) -> set[str]:
    parts = [part for part in (type_.key, type_.element, *(f.type for f in type_.fields)) if part is not None]
    return {type_.kind}.union(*map(_kinds, parts))


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
