"""Creates mappings of indexes from Connect schemas, as Confluent's connector does. This module does no I/O."""

from __future__ import annotations

import base64
from typing import Any

from headrace.data.json_values import EncodingOptions, to_json
from headrace.data.logical import DATE_NAME, DECIMAL_NAME, MILLIS_PER_DAY, TIME_NAME, TIMESTAMP_NAME
from headrace.data.schema import Schema, Type

_TYPES = {
    Type.BOOLEAN: "boolean",
    Type.INT8: "byte",
    Type.INT16: "short",
    Type.INT32: "integer",
    Type.INT64: "long",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.BYTES: "binary",
}
_LOGICAL_TYPES = {DATE_NAME: "date", TIME_NAME: "date", TIMESTAMP_NAME: "date", DECIMAL_NAME: "double"}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_OPTIONS = EncodingOptions(numeric_decimals=True)


def mapping_of(schema: Schema, compact_maps: bool, replaces_null: bool) -> dict[str, Any]:
    """Return the mapping of a field with this schema, or of a whole document with this schema.

    If `compact_maps` is true, a map with string keys is an object. Any other map is a list of objects with
    `key` and `value`. If `replaces_null` is true, the server searches for the default of a field that is null.
    """
    logical = _LOGICAL_TYPES.get(schema.name or "")
    if logical is not None:
        return _with_default({"type": logical}, schema, replaces_null)
    if schema.type is Type.STRUCT:
        return {
            "properties": {field.name: mapping_of(field.schema, compact_maps, replaces_null) for field in schema.fields}
        }
    if schema.type is Type.ARRAY:
        assert schema.value_schema is not None
        return mapping_of(schema.value_schema, compact_maps, replaces_null)
    if schema.type is Type.MAP:
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        if compact_maps and schema.key_schema.type is Type.STRING:
            return {"type": "object"}
        parts = {"key": schema.key_schema, "value": schema.value_schema}
        return {"properties": {name: mapping_of(part, compact_maps, replaces_null) for name, part in parts.items()}}
    if schema.type is Type.STRING:
        return dict(_TEXT)
    return _with_default({"type": _TYPES[schema.type]}, schema, replaces_null)


def _with_default(mapping: dict[str, Any], schema: Schema, replaces_null: bool) -> dict[str, Any]:
    """Add the schema's default as `null_value`: the server indexes this value instead of null.

    Without `replaces_null`, the mapping does not change. Binary fields get no `null_value`, because they do not
    support it.
    """
    default = schema.default
    if default is None or not replaces_null or mapping["type"] == "binary":
        return mapping
    if schema.name == DECIMAL_NAME:
        return mapping | {"null_value": float(default)}
    if schema.name == DATE_NAME:
        return mapping | {"null_value": default * MILLIS_PER_DAY}
    value = to_json(schema.replace(default=None), default, _OPTIONS)
    return mapping | {"null_value": base64.b64encode(value).decode() if isinstance(value, bytes) else value}
