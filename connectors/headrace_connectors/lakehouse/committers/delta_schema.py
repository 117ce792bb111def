"""Converts a table's columns and partition fields to the schema of a Delta table, and back. This module does no I/O.

A partition field with a transform is a column of the Delta table, for example `ts_day`. The column's metadata contain
the transform and its source column. Readers of the table see an ordinary partition column: an int for year and bucket,
a date for day, a string such as 2026-11 or 2026-11-28-13 for month and hour, and the source's type for truncate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from headrace_connectors.lakehouse.column_types import DDL_NAMES, ColumnType, TableColumn
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField
from headrace_connectors.lakehouse.files.partition_paths import partition_text

_TRANSFORM_KEY = "headrace.partition.transform"
_SOURCE_KEY = "headrace.partition.source"
_ARGUMENT_KEY = "headrace.partition.argument"
_NAMES = {**DDL_NAMES, "int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "time": "integer"}
_KINDS = {name: kind for kind, name in _NAMES.items() if kind != "time"}
_DERIVED_KINDS = {"year": "int32", "month": "string", "day": "date", "hour": "string", "bucket": "int32"}
_FIELD_RULES = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def delta_schema(columns: Sequence[TableColumn], layout: FileLayout) -> dict[str, Any]:
    """Return the schema of a Delta table in the JSON form of Delta's specification."""
    fields = [_field(column.name, column.type) for column in columns]
    types = {column.name: column.type for column in columns}
    for field in layout.partition_fields:
        if field.transform != "identity":
            metadata = {_TRANSFORM_KEY: field.transform, _SOURCE_KEY: field.column, _ARGUMENT_KEY: field.argument}
            fields.append(_field(field.name, derived_type(field, types[field.column]), metadata))
    return {"type": "struct", "fields": fields}


def derived_type(field: PartitionField, source: ColumnType) -> ColumnType:
    """Return the type of the partition column of a field with a transform."""
    if field.transform == "truncate":
        return source
    return ColumnType(_DERIVED_KINDS[field.transform])


def table_columns(schema: Mapping[str, Any]) -> tuple[TableColumn, ...]:
    """Return the columns of a Delta schema, without the partition columns that are derived from other columns."""
    return tuple(
        TableColumn(field["name"], _column_type(field["type"]))
        for field in schema["fields"]
        if _TRANSFORM_KEY not in field.get("metadata", {})
    )


def table_layout(schema: Mapping[str, Any], partition_columns: Iterable[str]) -> FileLayout:
    """Return the partition fields of a Delta table."""
    metadata = {field["name"]: field.get("metadata", {}) for field in schema["fields"]}
    return FileLayout(tuple(_partition_field(name, metadata.get(name, {})) for name in partition_columns))


def _partition_field(name: str, metadata: Mapping[str, Any]) -> PartitionField:
    if _TRANSFORM_KEY not in metadata:
        return PartitionField(name)
    return PartitionField(metadata[_SOURCE_KEY], metadata[_TRANSFORM_KEY], int(metadata[_ARGUMENT_KEY]))


def unsupported_rules(schema: Mapping[str, Any], configuration: Mapping[str, Any]) -> list[str]:
    """Return the features of a table whose rules a commit of finished files would violate.

    delta-rs checks them only when it writes the files itself.
    """
    found = {
        _FIELD_RULES[key] for field in schema["fields"] for key in field.get("metadata", {}) if key in _FIELD_RULES
    }
    if any(key.startswith("delta.constraints.") for key in configuration):
        found.add("checkConstraints")
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.add("columnMapping")
    return sorted(found)


def required_columns(schema: Mapping[str, Any]) -> list[str]:
    """Return the columns that must not contain null."""
    return [field["name"] for field in schema["fields"] if not field.get("nullable", True)]


def partition_value_text(field: PartitionField, value: Any) -> str | None:
    """Return the text of a partition value in a Delta commit. Null has no text."""
    if value is None:
        return None
    if field.transform == "year":
        return str(1970 + value)
    if field.transform in ("month", "hour"):
        return partition_text(field, value)
    return value_text(value)


def value_text(value: Any) -> str | None:
    """Return a partition column's value as text, as Delta's specification defines it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _field(name: str, type_: ColumnType, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "type": _delta_type(type_), "nullable": True, "metadata": dict(metadata or {})}


def _delta_type(type_: ColumnType) -> Any:
    if type_.kind == "struct":
        return {"type": "struct", "fields": [_field(field.name, field.type) for field in type_.fields]}
    if type_.kind == "array" and type_.element is not None:
        return {"type": "array", "elementType": _delta_type(type_.element), "containsNull": True}
    if type_.kind == "map" and type_.key is not None and type_.element is not None:
        key, value = _delta_type(type_.key), _delta_type(type_.element)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return str(type_) if type_.kind == "decimal" else _NAMES[type_.kind]


def _column_type(type_: Any) -> ColumnType:
    if isinstance(type_, str):
        decimal = _DECIMAL.fullmatch(type_)
        if decimal is not None:
            return ColumnType("decimal", precision=int(decimal[1]), scale=int(decimal[2]))
        return ColumnType(_KINDS.get(type_, type_))
    if type_["type"] == "struct":
        return ColumnType("struct", fields=tuple(_nested(field) for field in type_["fields"]))
    if type_["type"] == "array":
        return ColumnType("array", element=_column_type(type_["elementType"]))
    return ColumnType("map", key=_column_type(type_["keyType"]), element=_column_type(type_["valueType"]))


def _nested(field: Mapping[str, Any]) -> TableColumn:
    return TableColumn(field["name"], _column_type(field["type"]))
