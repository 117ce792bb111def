"""Describes the field because of which a server rejects a document: its name, and the value's and the field's type.

The server's reason contains the field's name and its type in the index. The record contains the value. The descriptions
contain no values. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct
from headrace.data.values import infer_type

_PATTERNS = (
    # OpenSearch and Elasticsearch 7. The reasons of Elasticsearch 8 begin with a position: [1:5]
    (re.compile(r"failed to parse field \[(?P<name>.+?)\] of type \[(?P<type>\w+)\]"), None),
    (re.compile(r"object mapping for \[(?P<name>.+?)\] tried to parse"), "object"),
    (re.compile(r"mapper \[(?P<name>.+?)\] cannot be changed from type \[(?P<type>\w+)\]"), None),
)
_POSITION = re.compile(r"\[\d+:\d+\] ")
_STRICT = re.compile(r"mapping set to strict, dynamic introduction of \[(.+?)\] within \[(.+?)\] is not allowed")
_MERGE = re.compile(r"can't merge a non object mapping \[(.+?)\] with an object mapping")
_LONG_TERM = re.compile(r'Document contains at least one immense term in field="(.+?)"')


class RejectedField(NamedTuple):
    """The field because of which a server rejects a document."""

    name: str
    """The names of the field and of the objects around it, separated by dots."""
    requirement: str
    """What the index requires of the field's value."""


def rejected_field(reason: str) -> RejectedField | None:
    """Return the field that a server's reason names, or None if it names none."""
    position = _POSITION.match(reason)
    text = reason if position is None else reason[position.end() :]
    for pattern, type_ in _PATTERNS:
        if match := pattern.match(text):
            return RejectedField(match["name"], f"the type of the field in the index is {type_ or match['type']}")
    if match := _STRICT.match(text):
        name = match[1] if match[2] == "_doc" else f"{match[2]}.{match[1]}"
        return RejectedField(name, "the index has no such field, and its mapping is strict")
    if match := _MERGE.match(text):
        return RejectedField(match[1], "the type of the field in the index is object")
    if match := _LONG_TERM.match(text):
        return RejectedField(match[1], "the index stores at most 32766 bytes of it as one term")
    return None


def describe(field: RejectedField, schema: Schema | None, value: Any, compact_maps: bool) -> str:
    """Return a text with the field's name, the type of the record's value, and what the index requires.

    `schema` and `value` belong to the whole record value. If `compact_maps` is true, a map with string keys is an
    object in the document. Any other map is a list of objects with `key` and `value`.
    """
    types = ", ".join(sorted(set(_types_at(schema, value, field.name, compact_maps))))
    return f"field {field.name}: {f'the type of the value is {types}, and ' if types else ''}{field.requirement}"


def _types_at(schema: Schema | None, value: Any, path: str, compact_maps: bool) -> Iterator[str]:
    """Yield the types of all values at a path, which has several values if it leads through an array."""
    if value is None and schema is not None:
        value = schema.default
    if value is None:
        return
    if isinstance(value, list):
        item_schema = None if schema is None else schema.value_schema
        for item in value:
            yield from _types_at(item_schema, item, path, compact_maps)
        return
    fields = list(_fields(schema, value, compact_maps))
    # A path that continues below a value without fields ends with the name of a multi-field, such as keyword.
    if not path or not fields:
        yield type_name(schema, value)
        return
    for name, item_schema, item in fields:
        if path == name or path.startswith(f"{name}."):
            yield from _types_at(item_schema, item, path[len(name) + 1 :], compact_maps)


def _fields(schema: Schema | None, value: Any, compact_maps: bool) -> Iterator[tuple[str, Schema | None, Any]]:
    """Yield the name, schema and value of each field that the value has in the document."""
    if schema is not None and schema.type is Type.STRUCT:
        row = value.row if isinstance(value, Struct) else value
        for field, item in zip(schema.fields, row, strict=True):
            yield field.name, field.schema, item
    elif isinstance(value, dict):
        keys, values = (None, None) if schema is None else (schema.key_schema, schema.value_schema)
        if keys is None or (compact_maps and keys.type is Type.STRING):
            yield from ((name, values, item) for name, item in value.items())
            return
        for key, item in value.items():
            yield "key", keys, key
            yield "value", values, item


def type_name(schema: Schema | None, value: Any) -> str:
    """Return the name of a value's Connect type, for messages."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "integer (more than 64 bits)"
    if schema is not None:
        return f"{schema.type.value} ({schema.name})" if schema.name else schema.type.value
    type_ = infer_type(value)
    return type(value).__name__ if type_ is None else type_.value
