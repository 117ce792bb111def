"""Types of table columns, with conversions from Connect schemas and to Spark's types.

A `ColumnType` is a tree of types. `parse_schema` creates it from a Connect schema (the JSON in
JsonConverter's envelope). `wire_type` returns the Spark type, as JSON, with which `from_json` parses
the payload. `str(column_type)` is Spark's DDL for error messages. Every table column is nullable.
This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

PRECISION_MAX = 38
LOGICAL_PREFIX = "org.apache.kafka.connect.data."

_PRIMITIVES = {
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {
    ("int32", "Date"): "date",
    ("int32", "Time"): "time",
    ("int64", "Timestamp"): "timestamp",
    ("bytes", "Decimal"): "decimal",
}
DDL_NAMES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
    "date": "date",
    "time": "int",
    "timestamp": "timestamp",
}
_SPARK_JSON = {
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
    "date": "date",
    "time": "integer",
    "timestamp": "timestamp",
}
# The Spark types with which logical types are parsed in JsonConverter's encoding.
_ENCODED_JSON = {"date": "integer", "timestamp": "long", "decimal": "binary"}


class SchemaError(ValueError):
    """A schema is malformed, or a table cannot store values with this schema. The message contains the field's name."""


class UndeclaredColumnsError(SchemaError):
    """Records have no schema, and the configuration does not declare the columns of their table."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, or a field of a struct. `default` is JSON in JsonConverter's encoding."""

    name: str
    type: ColumnType
    optional: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column. `kind` is a key of DDL_NAMES, or one of decimal, array, map, struct.

    A column that another tool added to a table may have another kind, for example timestamp_ntz. No record matches it.
    """

    kind: str
    fields: tuple[TableColumn, ...] = ()
    key: ColumnType | None = None
    element: ColumnType | None = None
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "array":
            return f"array<{self.element}>"
        if self.kind == "map":
            return f"map<{self.key},{self.element}>"
        if self.kind == "struct":
            return "struct<" + ",".join(f"{quoted(field.name)}:{field.type}" for field in self.fields) + ">"
        return DDL_NAMES.get(self.kind, self.kind)


STRING = ColumnType("string")


def quoted(name: str) -> str:
    """Return a column name as DDL text, in backquotes unless it is an identifier."""
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


# --- from Connect schemas -------------------------------------------------------------------------------------------


def parse_schema(schema: Any, path: str = "value") -> ColumnType:
    """Return the column type of a Connect schema in JsonConverter's JSON.

    Raises SchemaError if the schema is malformed or a table cannot have such a column. The message names the field, and
    begins with `path`.
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise SchemaError(f"{path}: a Connect schema must be an object with a 'type', not {_short(schema)}")
    kind = schema["type"]
    if kind == "struct":
        return ColumnType("struct", fields=_parse_fields(schema, path))
    if kind == "array":
        return ColumnType("array", element=parse_schema(schema.get("items"), f"{path}[]"))
    if kind == "map":
        key = parse_schema(schema.get("keys"), f"{path}.key")
        if key.kind in ("struct", "array", "map"):
            raise SchemaError(f"{path}: maps with keys of type {key} are not supported")
        return ColumnType("map", key=key, element=parse_schema(schema.get("values"), f"{path}.value"))
    if kind not in _PRIMITIVES:
        raise SchemaError(f"{path}: unknown Connect type {kind!r}")
    name = schema.get("name") or ""
    logical = _LOGICAL.get((kind, name.removeprefix(LOGICAL_PREFIX))) if name.startswith(LOGICAL_PREFIX) else None
    return _decimal(schema, path) if logical == "decimal" else ColumnType(logical or _PRIMITIVES[kind])


def _parse_fields(schema: dict[str, Any], path: str) -> tuple[TableColumn, ...]:
    fields = schema.get("fields")
    if not isinstance(fields, list):
        raise SchemaError(f"{path}: a struct schema must have 'fields'")
    columns = []
    for field in fields:
        name = field.get("field") if isinstance(field, dict) else None
        if not isinstance(name, str):
            raise SchemaError(f"{path}: a struct field must have a name in 'field': {_short(field)}")
        default = json.dumps(field["default"]) if field.get("default") is not None else None
        type_ = parse_schema(field, f"{path}.{name}")
        columns.append(TableColumn(name, type_, bool(field.get("optional", False)), default))
    return tuple(columns)


def _decimal(schema: dict[str, Any], path: str) -> ColumnType:
    parameters = schema.get("parameters") or {}
    try:
        scale = int(parameters["scale"])
        precision = int(parameters.get("connect.decimal.precision", PRECISION_MAX))
    except (KeyError, TypeError, ValueError):
        raise SchemaError(f"{path}: a Decimal must have an integer 'scale' parameter: {_short(parameters)}") from None
    if not 0 <= scale <= PRECISION_MAX:
        raise SchemaError(
            f"{path}: a Decimal with scale {scale} does not fit a table's decimal type, whose scale is 0 to 38;"
            " configure the source to send a float64 or a string (numeric.mapping=best_fit)"
        )
    # Use the largest precision if the schema's precision is missing, not above the scale, or more than a table
    # supports. Sources that do not know a column's precision send such a precision.
    precision = precision if scale < precision <= PRECISION_MAX else PRECISION_MAX
    return ColumnType("decimal", precision=precision, scale=scale)


def table_columns(schema_type: ColumnType, path: str = "value") -> tuple[TableColumn, ...]:
    """Return the columns of a table for records whose values have the type `schema_type`.

    A struct has one column for each field. Any other type has one column named `value`.
    """
    columns = schema_type.fields if schema_type.kind == "struct" else (TableColumn("value", schema_type),)
    check_names((column.name for column in columns), path)
    return columns


def check_names(names: Iterable[str], path: str) -> None:
    """Raise SchemaError if `names` is empty, a name is empty, or two names differ only in case.

    The message begins with `path`, the struct whose fields have these names.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise SchemaError(f"{path}: a column name is empty")
        first = seen.setdefault(name.lower(), name)
        if first != name:
            raise SchemaError(
                f"{path}: columns {first!r} and {name!r} differ only in case, which tables do not support"
            )
    if not seen:
        raise SchemaError(f"{path}: a struct without fields cannot be stored, because a table needs a column")


def leaf_types(columns: Iterable[TableColumn], path: str = "") -> dict[str, str]:
    """Return {path: type} of the columns. Instead of a struct, the result contains the fields of the struct.

    Every path begins with `path`. The types do not include nullability.
    """
    leaves = {}
    for column in columns:
        name = path + quoted(column.name)
        if column.type.fields:
            leaves.update(leaf_types(column.type.fields, f"{name}."))
        else:
            leaves[name] = str(column.type)
    return leaves


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the differences between the leaf types of two tables, such as `column n: int -> string`."""
    found = []
    for name, type_ in before.items():
        if name not in after:
            found.append(f"column {name} removed ({type_})")
        elif after[name] != type_:
            found.append(f"column {name}: {type_} -> {after[name]}")
    return found + [f"column {name} added ({type_})" for name, type_ in after.items() if name not in before]


def with_defaults_of(columns: Iterable[TableColumn], other: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """Return `columns` with the defaults of `other`, which has the same columns in any order."""
    by_name = {column.name: column for column in other}
    return tuple(
        replace(
            column, default=by_name[column.name].default, type=_with_defaults_of(column.type, by_name[column.name].type)
        )
        for column in columns
    )


def _with_defaults_of(type_: ColumnType, other: ColumnType) -> ColumnType:
    element = type_.element
    if element is not None and other.element is not None:
        element = _with_defaults_of(element, other.element)
    return replace(type_, fields=with_defaults_of(type_.fields, other.fields), element=element)


def without_defaults(columns: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """Return `columns` without defaults. The fields of nested structs have no defaults either."""
    return tuple(replace(column, default=None, type=_without_defaults(column.type)) for column in columns)


def _without_defaults(type_: ColumnType) -> ColumnType:
    element = _without_defaults(type_.element) if type_.element is not None else None
    return replace(type_, fields=without_defaults(type_.fields), element=element)


def widened(columns: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """Return `columns` with int instead of tinyint and smallint, and without defaults, as Iceberg stores them."""
    return tuple(replace(column, type=_widened(column.type), default=None) for column in columns)


def _widened(type_: ColumnType) -> ColumnType:
    if type_.kind in ("int8", "int16"):
        return ColumnType("int32")
    return replace(
        type_,
        fields=widened(type_.fields),
        key=_widened(type_.key) if type_.key is not None else None,
        element=_widened(type_.element) if type_.element is not None else None,
    )


# --- to Spark types -------------------------------------------------------------------------------------------------


def wire_type(type_: ColumnType, *, encoded: bool, decimals_numeric: bool = False) -> Any:
    """Return the Spark type, as JSON, with which `from_json` parses a payload of column type `type_`.

    If `encoded` is true, the payload has JsonConverter's encoding: dates are days, timestamps are
    milliseconds, and decimals are base64, or numbers if `decimals_numeric` is true. Otherwise the
    payload has Spark's JSON format.
    """

    def inner(child: ColumnType) -> Any:
        return wire_type(child, encoded=encoded, decimals_numeric=decimals_numeric)

    if type_.kind == "struct":
        return struct_json((field.name, inner(field.type)) for field in type_.fields)
    if type_.kind == "map" and encoded and type_.key is not None and type_.key.kind != "string":
        # JsonConverter writes a map whose keys are not strings as [[key, value], ...].
        return _array_json(_array_json("string"))
    if type_.kind == "map" and type_.key is not None and type_.element is not None:
        key, value = inner(type_.key), inner(type_.element)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if type_.kind == "array" and type_.element is not None:
        return _array_json(inner(type_.element))
    if encoded and type_.kind in _ENCODED_JSON and not (type_.kind == "decimal" and decimals_numeric):
        return _ENCODED_JSON[type_.kind]
    return str(type_) if type_.kind == "decimal" else _SPARK_JSON[type_.kind]


def struct_json(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the Spark type, as JSON, of a struct with nullable fields."""
    return {
        "type": "struct",
        "fields": [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields],
    }


def _array_json(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def needs_no_conversion(type_: ColumnType) -> bool:
    """Whether a parsed payload value is already the column's value: it needs no decoding and no defaults."""
    if type_.kind in _ENCODED_JSON:
        return False
    if type_.kind == "map" and type_.key is not None and type_.key.kind != "string":
        return False
    if type_.kind == "struct":
        return all(field.default is None and needs_no_conversion(field.type) for field in type_.fields)
    return all(child is None or needs_no_conversion(child) for child in (type_.key, type_.element))


def leaf_count(type_: ColumnType) -> int:
    """Return the number of columns that result from flattening the structs in a column of this type."""
    return max(1, sum(leaf_count(field.type) for field in type_.fields)) if type_.kind == "struct" else 1


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
