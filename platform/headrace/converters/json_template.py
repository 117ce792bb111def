"""JSON of values that are held by column: what all records share is written once, as a template around the rest.

One column of strings may differ from record to record (the lines of a file with what transforms added): its JSON is
written in one piece, and the template is put around it when record batches are built. Anything else is left to
`headrace.converters.json_encoding`, whose bytes are the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.api.converter import Enclosed
from headrace.api.errors import DataError
from headrace.converters.json_encoding import java_escapes, write
from headrace.converters.json_values import Style, to_json
from headrace.data.columns import Columns, Compact, Lines, Shared
from headrace.data.logical import is_logical
from headrace.data.schema import Schema, Type

_encoder = msgspec.json.Encoder()


def encode_compact(
    schema: Schema | None, values: Compact, style: Style, before: bytes = b"", after: bytes = b""
) -> Enclosed | None:
    """The text of each value between `before` and `after`; None where that takes a closer look."""
    try:
        if isinstance(values, Lines):
            return _around(values, before, after) if _is_text(schema) else None
        if not isinstance(values, Columns):
            return None
        opening, column, closing = _template(schema, values, style)
        return _around(column, before + opening, closing + after)
    except (DataError, UnicodeEncodeError, OverflowError, RecursionError, TypeError, ValueError):
        return None  # whatever it is, the closer look names the records at fault


def _template(schema: Schema | None, values: Columns, style: Style) -> tuple[bytes, Lines | list[Any], bytes]:
    """The JSON before the one column that differs, that column, and the JSON after it. Raises DataError."""
    texts = [b""]
    found: Lines | list[Any] | None = None
    separator = b"{"
    for index, (name, column) in enumerate(zip(values.names, values.columns, strict=True)):
        field_schema = None if schema is None else schema.fields[index].schema
        texts[-1] += separator + write(name) + b":"
        separator = b","
        if isinstance(column, Shared):
            texts[-1] += write(to_json(field_schema, column.value, style))
        elif found is None and not isinstance(column, range) and _is_text(field_schema):
            found = column
            texts.append(b"")
        else:
            raise DataError("more than one column of strings")
    if found is None:
        raise DataError("no column of strings")
    return texts[0], found, texts[1] + b"}"


def _is_text(schema: Schema | None) -> bool:
    return schema is None or (schema.type is Type.STRING and not is_logical(schema))


def _around(column: Lines | list[Any], before: bytes, after: bytes) -> Enclosed | None:
    """The JSON of each string, with `before` and `after` around it; None when not all are strings."""
    if isinstance(column, Lines):
        clean = _clean(column)
        if clean is not None:
            return Enclosed(before + b'"', clean.split(b"\n"), b'"' + after)
        column = column.items()
    elif set(map(type, column)) != {str}:
        return None
    texts = java_escapes(_encoder.encode_lines(column)).split(b"\n")
    texts.pop()
    return Enclosed(before, texts, after)


def _clean(lines: Lines) -> bytes | None:
    """The lines in UTF-8 as JSON strings hold them, when nothing in them but the line feeds is to be escaped."""
    text = lines.text
    if '"' in text or "\\" in text:
        return None
    data = text.encode()
    if len(_encoder.encode(text)) != len(data) + 2 + len(lines) - 1:
        return None
    return java_escapes(data)
