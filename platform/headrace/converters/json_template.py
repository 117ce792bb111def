"""Encodes columnar values as JSON with a template: the JSON that all records have in common is encoded only once.

Values fit a template if the records differ in only one column, and this column contains strings. For example, each
record contains a line of a file and the constant fields that transforms added. The column of strings is encoded in one
call. The producer adds the template before and after each string when it builds record batches. If the values do not
fit a template, `headrace.data.json_encoding` encodes them. For the same values, both modules produce the same bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.api.converter import FramedValues
from headrace.api.errors import DataError
from headrace.data.columns import ColumnarValues, Columns, Lines, Shared
from headrace.data.json_encoding import encode_tree, java_escapes
from headrace.data.json_values import EncodingOptions, to_json
from headrace.data.logical import is_logical
from headrace.data.schema import Schema, Type

_encoder = msgspec.json.Encoder()
_ESCAPED_CHARACTERS = ['"', "\\", *(chr(code) for code in range(0x20) if chr(code) != "\n")]
"""The characters that JSON escapes, except the line feed, which separates lines. One search per character is faster
than one pass over the text that tests each character, because each search compares many bytes at once."""
_ESCAPED_BYTES = [character.encode() for character in _ESCAPED_CHARACTERS]


def encode_compact(
    schema: Schema | None, values: ColumnarValues, options: EncodingOptions, before: bytes = b"", after: bytes = b""
) -> FramedValues | None:
    """Return the JSON of each value, enclosed in `before` and `after`, or None if the values do not fit a template."""
    try:
        if isinstance(values, Lines):
            return _frame(values, before, after) if _is_text(schema) else None
        if not isinstance(values, Columns):
            return None
        opening, column, closing = _find_template(schema, values, options)
        return _frame(column, before + opening, closing + after)
    except (DataError, UnicodeEncodeError, OverflowError, RecursionError, TypeError, ValueError):
        return None  # the caller then encodes value by value and reports the invalid records


def _find_template(
    schema: Schema | None, values: Columns, options: EncodingOptions
) -> tuple[bytes, Lines | list[Any], bytes]:
    """Return the only column that differs between records, with the JSON before it and the JSON after it.

    Raises DataError if the values do not fit a template.
    """
    texts = [b""]
    found: Lines | list[Any] | None = None
    separator = b"{"
    for index, (name, column) in enumerate(zip(values.names, values.columns, strict=True)):
        field_schema = None if schema is None else schema.fields[index].schema
        texts[-1] += separator + encode_tree(name) + b":"
        separator = b","
        if isinstance(column, Shared):
            texts[-1] += encode_tree(to_json(field_schema, column.value, options))
        elif found is None and not isinstance(column, range) and _is_text(field_schema):
            found = column
            texts.append(b"")
        else:
            raise DataError(
                "a template supports only one column that differs between records, and it must contain strings"
            )
    if found is None:
        raise DataError("no column differs between records, so a template is not needed")
    return texts[0], found, texts[1] + b"}"


def _is_text(schema: Schema | None) -> bool:
    return schema is None or (schema.type is Type.STRING and not is_logical(schema))


def _frame(column: Lines | list[Any], before: bytes, after: bytes) -> FramedValues | None:
    """Return the JSON of each string, enclosed in `before` and `after`, or None if some values are not strings."""
    if isinstance(column, Lines):
        unescaped = _encode_if_unescaped(column)
        if unescaped is not None:
            return FramedValues(before + b'"', unescaped, b'"' + after)
        column = column.items()
    elif set(map(type, column)) != {str}:
        return None
    texts = java_escapes(_encoder.encode_lines(column)).split(b"\n")
    texts.pop()
    return FramedValues(before, texts, after)


def _encode_if_unescaped(lines: Lines) -> list[bytes] | None:
    """Return the lines in UTF-8, or None if they contain characters that JSON escapes."""
    text = lines.text
    if text.isascii():
        return None if any(map(text.__contains__, _ESCAPED_CHARACTERS)) else lines.encoded()
    data = text.encode()
    if any(map(data.__contains__, _ESCAPED_BYTES)):
        return None
    escaped = java_escapes(data)
    return lines.encoded() if escaped is data else escaped.split(b"\n")
