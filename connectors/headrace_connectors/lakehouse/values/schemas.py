"""Converts Connect schemas to types of table columns. This module does no I/O."""

from __future__ import annotations

import json

from headrace.data.logical import DATE_NAME, DECIMAL_NAME, SCALE_PARAMETER, TIME_NAME, TIMESTAMP_NAME
from headrace.data.schema import Schema, Type
from headrace_connectors.lakehouse.column_types import (
    PRECISION_MAX,
    ColumnType,
    SchemaError,
    TableColumn,
    check_names,
)

_PRIMITIVES = {
    Type.INT8: ColumnType("int8"),
    Type.INT16: ColumnType("int16"),
    Type.INT32: ColumnType("int32"),
    Type.INT64: ColumnType("int64"),
    Type.FLOAT32: ColumnType("float32"),
    Type.FLOAT64: ColumnType("float64"),
    Type.BOOLEAN: ColumnType("boolean"),
    Type.STRING: ColumnType("string"),
    Type.BYTES: ColumnType("bytes"),
}
_LOGICAL = {
    (Type.INT32, DATE_NAME): ColumnType("date"),
    (Type.INT32, TIME_NAME): ColumnType("time"),
    (Type.INT64, TIMESTAMP_NAME): ColumnType("timestamp"),
}
_NESTED_KINDS = ("struct", "array", "map")


def schema_columns(schema: Schema, path: str = "value") -> tuple[TableColumn, ...]:
    """Return the columns of a table for values with this schema. Raises SchemaError, whose message begins with `path`.

    A struct has one column for each field. Any other type has one column named `value`.
    """
    type_ = column_type(schema, path)
    return type_.fields if type_.kind == "struct" else (TableColumn("value", type_, schema.optional),)


def column_type(schema: Schema, path: str = "value") -> ColumnType:
    """Return the column type of a Connect schema.

    Raises SchemaError if a table cannot have such a column. The message names the field, and begins with `path`.
    """
    if schema.type is Type.STRUCT:
        fields = tuple(
            TableColumn(field.name, column_type(field.schema, f"{path}.{field.name}"), field.schema.optional)
            for field in schema.fields
        )
        check_names((field.name for field in fields), path)
        return ColumnType("struct", fields=fields)
    if schema.type is Type.ARRAY:
        assert schema.value_schema is not None
        return ColumnType("array", element=column_type(schema.value_schema, f"{path}[]"))
    if schema.type is Type.MAP:
        return _map_type(schema, path)
    if schema.type is Type.BYTES and schema.name == DECIMAL_NAME:
        return _decimal_type(schema, path)
    return _LOGICAL.get((schema.type, schema.name or "")) or _PRIMITIVES[schema.type]


def _map_type(schema: Schema, path: str) -> ColumnType:
    assert schema.key_schema is not None
    assert schema.value_schema is not None
    key = column_type(schema.key_schema, f"{path}.key")
    if key.kind in _NESTED_KINDS:
        raise SchemaError(f"{path}: maps with keys of type {key} are not supported")
    return ColumnType("map", key=key, element=column_type(schema.value_schema, f"{path}.value"))


def _decimal_type(schema: Schema, path: str) -> ColumnType:
    parameters = schema.parameters or {}
    try:
        scale = int(parameters[SCALE_PARAMETER])
        precision = int(parameters.get("connect.decimal.precision", PRECISION_MAX))
    except (KeyError, ValueError):
        raise SchemaError(
            f"{path}: a Decimal must have an integer 'scale' parameter: {json.dumps(dict(parameters))}"
        ) from None
    if not 0 <= scale <= PRECISION_MAX:
        raise SchemaError(
            f"{path}: a Decimal with scale {scale} does not fit a table's decimal type, whose scale is 0 to 38;"
            " configure the source to send a float64 or a string (numeric.mapping=best_fit)"
        )
    # Use the largest precision if the schema's precision is missing, not above the scale, or more than a table
    # supports. Sources that do not know a column's precision send such a precision.
    precision = precision if scale < precision <= PRECISION_MAX else PRECISION_MAX
    return ColumnType("decimal", precision=precision, scale=scale)
