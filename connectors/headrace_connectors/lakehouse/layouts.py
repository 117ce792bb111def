"""What each topic's records look like: which columns they have and how their payload is read. Pure.

A topic's layout is learned from its first record with a schema (or declared), and holds for the life of the task. A
record with another schema text of the same columns is accepted; one with other columns stops the task until tables can
change their columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import (
    STRING,
    Column,
    ColumnType,
    SchemaError,
    defaults_of,
    differences,
    parse_schema,
    table_columns,
)
from headrace_connectors.lakehouse.envelope import schema_id_of

METADATA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


class SchemaChangedError(ConnectError):
    """A record's schema has other columns than the topic's records before it."""


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


@dataclass(slots=True)
class _Learned:
    layout: Layout
    schema_ids: set[int]
    place: Place
    required: dict[int, frozenset[str]] = field(default_factory=dict)


class Layouts:
    """The layouts of a task's topics; owned by its one loader."""

    def __init__(
        self,
        *,
        value: str,
        declared: Mapping[str, tuple[Column, ...]],
        declared_default: tuple[Column, ...] | None,
        metadata_columns: bool,
        replace_null_with_default: bool,
        decimals_numeric: bool,
    ) -> None:
        self._value = value
        self._declared = declared
        self._declared_default = declared_default
        self._metadata_columns = metadata_columns
        self._defaults = replace_null_with_default
        self._decimals_numeric = decimals_numeric
        self._learned: dict[str, _Learned] = {}

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

    def origin(self, topic: str) -> str:
        """Say where a topic's layout comes from: its first record, or the declaration."""
        return str(self._learned[topic].place) if topic in self._learned else f"topic {topic}"

    def schema_ids(self, topic: str) -> frozenset[int]:
        """Return the ids of the schema texts that a topic's layout covers."""
        return frozenset(self._learned[topic].schema_ids) if topic in self._learned else frozenset()

    def required(self, topic: str) -> list[str]:
        """Return the top columns that are never null in records of one of the topic's schemas at least."""
        learned = self._learned.get(topic)
        return sorted(frozenset[str]().union(*learned.required.values())) if learned is not None else []

    def required_in(self, topic: str, schema_id: int) -> frozenset[str]:
        """Return the top columns that are never null in records of that schema."""
        return self._learned[topic].required.get(schema_id, frozenset())

    def learn(self, place: Place, schema: str, payload: str | None) -> None:
        """Take in the schema of a record: a topic's first, or another one that has to fit it.

        Raises SchemaChangedError, or SchemaError when no table can hold the schema.
        """
        try:
            type_ = parse_schema(json.loads(schema))
            columns = table_columns(type_)
            self._check_clash(columns)
        except SchemaError as error:
            raise ConnectError(f"{place}: {error}") from error
        if not self._defaults:
            columns = tuple(map(_without_defaults, columns))
        learned = self._learned.get(place.topic)
        if learned is None:
            numeric = decimals_numeric(type_, payload)
            layout = Layout(columns, encoded=True, wrapped=type_.kind != "struct", decimals_numeric=numeric)
            learned = self._learned[place.topic] = _Learned(layout, set(), place)
        else:
            self._check_same(learned, columns, place)
        schema_id = schema_id_of(schema.encode())
        learned.schema_ids.add(schema_id)
        learned.required[schema_id] = frozenset(
            column.name for column in columns if not column.optional and column.default is None
        )

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

    @staticmethod
    def _check_same(learned: _Learned, columns: tuple[Column, ...], place: Place) -> None:
        changes = list(differences(learned.layout.columns, columns))
        what = "type"
        if not changes:
            before, after = defaults_of(learned.layout.columns), defaults_of(columns)
            names = sorted({*before, *after})
            what = "default"
            changes = [(n, before.get(n, "none"), after.get(n, "none")) for n in names if before.get(n) != after.get(n)]
        if changes:
            name, old, new = changes[0]
            more = f" (and {len(changes) - 1} more changes)" if len(changes) > 1 else ""
            raise SchemaChangedError(
                f"{place}: the schema changed: the {what} of field {name} was {old} (since {learned.place})"
                f" and is {new}{more}; a table keeps the columns of its first record: send records of the new form to a"
                " topic of their own"
            )


def _without_defaults(column: Column) -> Column:
    return replace(
        column, default=None, type=replace(column.type, fields=tuple(map(_without_defaults, column.type.fields)))
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
