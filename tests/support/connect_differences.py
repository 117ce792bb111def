"""The differences between headrace and classes of Kafka Connect that docs/connect.md lists, as narrow conditions."""

from __future__ import annotations

import json
from typing import Any

from support.connect_oracle import ERROR, Request

_NUMBERS = ("int8", "int16", "int32", "int64", "float", "double")


def is_known_difference(request: Request, case: Any, java: Any, headrace: Any) -> bool:
    """Whether docs/connect.md lists the difference between the two results. `case` is None for a configuration."""
    name = request.java_class.rpartition(".")[2]
    if name in ("RegexRouter", "TimestampRouter") and headrace == "configure":
        return _only_fails_later(request, java)
    if name.startswith(("Cast$", "TimestampConverter$")) and java == ERROR:
        return _is_struct_with_default(request, case, name)
    if name in ("StringConverter", "SimpleHeaderConverter") and case[0] == "from":
        return _writes_an_address(name, case[2])
    if name == "SimpleHeaderConverter":
        return headrace[0] is not None and headrace[0]["type"] == "bytes"  # text that is not valid UTF-8
    if name == "JsonConverter" and case[0] == "to" and headrace == ERROR:
        return _is_read_wrongly(request, bytes.fromhex(case[1]))
    return False


def _only_fails_later(request: Request, java: list[Any]) -> bool:
    """headrace rejects the configuration. Kafka Connect fails for all records that the invalid part applies to."""
    topics = [case[1] for case in request.cases]
    return all(result == ERROR or result[1] == topic for result, topic in zip(java, topics, strict=True))


def _is_struct_with_default(request: Request, case: Any, name: str) -> bool:
    """Java cannot build a new schema for a struct whose schema has a default."""
    index = case[3 if name.endswith("$Key") else 5]
    schema = None if index is None else request.schemas[index]
    return schema is not None and schema["type"] == "struct" and "default" in schema


def _writes_an_address(name: str, value: Any) -> bool:
    """Java's text of bytes is the address of the object."""
    if value is None or value[0] in ("string", "boolean"):
        return False
    if value[0] == "bytes":
        return name == "StringConverter"
    children = value[1] if isinstance(value[1], list) else []
    if value[0] == "map":
        children = [item for pair in children for item in pair]
    return any(_writes_an_address("StringConverter", child) for child in children if isinstance(child, list))


def _is_read_wrongly(request: Request, data: bytes) -> bool:
    """Java returns 0, "" or an empty list for JSON of the wrong type, and ignores what follows the JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return True
    try:
        tree, end = json.JSONDecoder().raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return False
    if text.lstrip(" \t\r\n")[end:].strip(" \t\r\n"):
        return True
    is_envelope = request.config.get("schemas.enable", "true").strip().lower() == "true" and isinstance(tree, dict)
    return is_envelope and _is_mismatched(tree.get("schema"), tree.get("payload"))


def _is_mismatched(schema: Any, payload: Any) -> bool:
    if not isinstance(schema, dict) or payload is None:
        return False
    type_ = schema.get("type")
    if type_ in _NUMBERS:
        return isinstance(payload, bool) or not isinstance(payload, (int, float))
    if type_ == "boolean":
        return not isinstance(payload, bool)
    if type_ in ("string", "bytes"):
        return not isinstance(payload, str)
    if type_ == "array":
        return not isinstance(payload, list) or any(_is_mismatched(schema.get("items"), item) for item in payload)
    return False
