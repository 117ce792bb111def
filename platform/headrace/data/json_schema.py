"""Converts Connect schemas to and from JSON: the ``schema`` part of JsonConverter's envelope.

The names and the order of the keys are the same as in Kafka's JsonConverter: ``type``, then ``items`` (arrays),
``keys`` and ``values`` (maps) or ``fields`` (structs), then ``optional``, ``name``, ``version``, ``doc``,
``parameters``, ``default``. The schema of a struct's field ends with the key ``field``, which contains the field's
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.api.errors import DataError
from headrace.data.java import wrap
from headrace.data.schema import Schema, Type, array, map_of, struct

_TYPE_NAMES: Mapping[Type, str] = {type_: type_.value for type_ in Type} | {
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
}
_TYPES = {name: type_ for type_, name in _TYPE_NAMES.items()}

ToJson = Callable[[Schema, Any], Any]
"""Converts a default value to JSON; see `headrace.data.json_values`."""
FromJson = Callable[[Schema, Any], Any]
"""Converts a default value from JSON; see `headrace.converters.json_decoding`."""


def schema_to_json(schema: Schema, to_json: ToJson) -> dict[str, Any]:
    """Convert a schema to a JSON object. `to_json` converts the default values."""
    tree: dict[str, Any] = {"type": _TYPE_NAMES[schema.type]}
    if schema.type is Type.ARRAY:
        tree["items"] = _element_to_json(schema.value_schema, to_json)
    elif schema.type is Type.MAP:
        tree["keys"] = _element_to_json(schema.key_schema, to_json)
        tree["values"] = _element_to_json(schema.value_schema, to_json)
    elif schema.type is Type.STRUCT:
        tree["fields"] = [{**schema_to_json(field.schema, to_json), "field": field.name} for field in schema.fields]
    tree["optional"] = schema.optional
    for name in ("name", "version", "doc"):
        if getattr(schema, name) is not None:
            tree[name] = getattr(schema, name)
    if schema.parameters is not None:
        tree["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        tree["default"] = to_json(schema, schema.default)
    return tree


def _element_to_json(schema: Schema | None, to_json: ToJson) -> dict[str, Any] | None:
    return None if schema is None else schema_to_json(schema, to_json)


def has_plain_names(schema: Schema) -> bool:
    """Whether no field name contains characters that JSON escapes."""
    return all(field.name.isprintable() and not {'"', "\\"} & {*field.name} for field in schema.fields)


def schema_from_json(tree: Any, from_json: FromJson) -> Schema | None:
    """Parse a schema from a JSON object, or return None for a JSON null.

    Raises DataError if a key is missing or a value is invalid.
    """
    if tree is None:
        return None
    schema = _parse_type(tree, from_json)
    version = _value_if_instance(int, tree.get("version"))
    attributes = {
        "optional": tree.get("optional") is True,
        "name": _value_if_instance(str, tree.get("name")),
        "version": None if version is None else wrap(version, 32),  # as Java's JsonNode.intValue
        "doc": _value_if_instance(str, tree.get("doc")),
        "parameters": _parse_parameters(tree.get("parameters")),
    }
    schema = schema.replace(**attributes)
    if "default" in tree:
        default = from_json(schema, tree["default"])
        return schema.replace(default=default) if default is not None else schema
    return schema


def _parse_type(tree: Any, from_json: FromJson) -> Schema:
    type_name = tree.get("type") if isinstance(tree, dict) else None
    if not isinstance(type_name, str):
        raise DataError("Schema must contain 'type' field")
    type_ = _TYPES.get(type_name)
    if type_ is None:
        raise DataError(f"Unknown schema type: {type_name}")
    if type_ is Type.ARRAY:
        return array(_parse_required(tree, "items", "Array schema did not specify the element type", from_json))
    if type_ is Type.MAP:
        return map_of(
            _parse_required(tree, "keys", "Map schema did not specify the key type", from_json),
            _parse_required(tree, "values", "Map schema did not specify the value type", from_json),
        )
    if type_ is Type.STRUCT:
        return struct(_parse_fields(tree.get("fields"), from_json))
    return Schema(type_)


def _parse_required(tree: dict[str, Any], key: str, message: str, from_json: FromJson) -> Schema:
    schema = schema_from_json(tree.get(key), from_json)
    if schema is None:
        raise DataError(message)
    return schema


def _parse_fields(trees: Any, from_json: FromJson) -> list[tuple[str, Schema]]:
    if not isinstance(trees, list):
        raise DataError('Struct schema\'s "fields" argument is not an array.')
    fields = []
    for tree in trees:
        name = tree.get("field") if isinstance(tree, dict) else None
        if not isinstance(name, str):
            raise DataError("Struct schema's field name not specified properly")
        schema = schema_from_json(tree, from_json)
        if schema is not None:
            fields.append((name, schema))
    return fields


def _parse_parameters(tree: Any) -> dict[str, str] | None:
    if not isinstance(tree, dict):
        return None
    for value in tree.values():
        if not isinstance(value, str):
            raise DataError("Schema parameters must have string values.")
    return tree or None


def _value_if_instance(class_: type, value: Any) -> Any:
    return value if isinstance(value, class_) and not isinstance(value, bool) else None
