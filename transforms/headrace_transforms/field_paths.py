"""Parses field paths, and finds the fields and values to which they refer.

A path of version V1 is the name of a top-level field. A path of version V2 contains the names of nested fields,
separated by dots (KIP-821)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.config import Importance, key
from headrace.api.errors import ConfigError, DataError
from headrace.data.schema import Field, Schema, Type
from headrace.data.struct import row_converter
from headrace_transforms.record_errors import place_of, record_error, schema_type_name, type_name


def field_syntax_key() -> Any:
    """Return the definition of the configuration key ``field.syntax.version``."""
    return key(
        "field.syntax.version",
        default="V1",
        one_of=("V1", "V2"),
        case_insensitive=True,
        doc="Syntax of field names. V1: a single name. V2: a path into nested data, with dots between names and "
        "backticks around names that contain dots.",
        importance=Importance.HIGH,
    )


def parse_path(text: str, version: str, config_key: str) -> tuple[str, ...]:
    """Return the field names in a path. `version` is V1 or V2. Raises ConfigError for an unclosed backtick."""
    if version.upper() == "V1":
        return (text,)
    steps: list[str] = []
    position = 0
    while position < len(text):
        if text[position] == "`":
            step, position = _in_backticks(text, position, config_key)
        else:
            end = text.find(".", position)
            end = len(text) if end < 0 else end
            step, position = text[position:end], end + 1
        steps.append(step)
    if text.endswith("."):
        steps.append("")
    return tuple(steps)


def _in_backticks(text: str, start: int, config_key: str) -> tuple[str, int]:
    """Return the name between the backtick at `start` and its closing backtick, and the index of the next name.

    A closing backtick is followed by a dot or by the end of the path.
    """
    step, position, copied = "", start + 1, start + 1
    while True:
        position = text.find("`", position)
        escaped = position > 0 and text[position - 1] == "\\"
        at_end = position >= len(text) - 1
        if position < 0 or (at_end and escaped):
            raise ConfigError(
                config_key,
                text,
                f"Incomplete backtick pair in path: [{text}], consider adding a backslash before backtick at "
                f"position {start} to escape it",
            )
        if at_end:
            return step + text[copied:position], position + 1
        if text[position + 1] != ".":
            position += 1
        elif escaped:
            step += text[copied : position - 1] + "`"
            position += 1
            copied = position
        else:
            return step + text[copied:position], position + 2


def field_at(schema: Schema, path: tuple[str, ...], side: str) -> Field | None:
    """Return the field at a path, or None if it is missing. Raises DataError if its parent is not a struct.

    An empty path is an error, too.
    """
    if not path:
        raise _no_field(side)
    for step in path[:-1]:
        field = schema.field(step) if schema.type is Type.STRUCT else None
        if field is None:
            return None
        schema = field.schema
    if schema.type is not Type.STRUCT:
        place = place_of(side, *path[:-1])
        raise record_error("Cannot look up fields on non-struct type", place, "STRUCT", schema_type_name(schema))
    return schema.field(path[-1])


def row_getter(schema: Schema, path: tuple[str, ...], replace_null: bool) -> Callable[[Any], Any]:
    """Return a function that returns the value at a path in a row. The path must exist in the schema.

    With `replace_null`, the function returns the default of a field that is null.
    """
    steps = []
    for number, step in enumerate(path):
        field = schema.fields[schema.index_of(step)]
        last = number == len(path) - 1
        default = field.schema.default if replace_null or not last else None
        steps.append((field.index, row_converter(field.schema)(default)))
        schema = field.schema

    def get(row: Any) -> Any:
        for index, default in steps:
            if row is None:
                return None
            row = row[index]
            if row is None:
                row = default
        return row

    return get


def map_value(value: dict[str, Any], path: tuple[str, ...], side: str) -> Any:
    """Return the value at a path in a schemaless map, or None if the value is missing.

    Raises DataError if the path is empty, or if a parent of the value is not a map.
    """
    if not path:  # an empty path of version V2
        raise _no_field(side)
    current: Any = value
    for step in path:
        if current is None:
            return None
        if not isinstance(current, dict):
            raise _no_map(value, path, side)
        current = current.get(step)
    return current


def _no_field(side: str) -> DataError:
    return record_error("The path contains no field", place_of(side), "a name or path of a field", "an empty path")


def _no_map(value: Any, path: tuple[str, ...], side: str) -> DataError:
    """Return the error for a path with a parent that is not a map."""
    depth = 0
    while isinstance(value, dict):
        value, depth = value.get(path[depth]), depth + 1
    message = "Only Map objects supported in absence of schema for [nested field access], found: " + type_name(value)
    return record_error(message, place_of(side, *path[:depth]), "MAP")
