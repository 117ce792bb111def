"""Connect values to JSON text, as Jackson writes them for Kafka's JsonConverter, whole lists at a time.

For structs msgspec checks and writes all rows at once, with generated Python between for the fields that need it. When
that cannot vouch for a list, `encode_list` goes value by value through `headrace.converters.json_values`, which defines
what is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import starmap
from typing import Annotated, Any

import msgspec

from headrace.api.errors import BatchError, DataError
from headrace.converters.json_schema import plain_names, schema_to_json
from headrace.converters.json_values import Style, double_json, to_json
from headrace.data.logical import DECIMAL_NAME, PYTHON_TYPES, is_logical, to_base
from headrace.data.schema import INT_RANGES, Schema, Type

_encoder = msgspec.json.Encoder()
_lower_hex = re.compile(rb"\\(?:\\|u00([01][0-9a-f]))")
_four_bytes = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_SAFE = {str, int, bool, type(None)}


def write(tree: Any) -> bytes:
    """The text of what `to_json` returned."""
    return java_escapes(_encoder.encode(tree))


def encode_schema(schema: Schema, style: Style) -> bytes:
    """The text of a schema."""
    return write(schema_to_json(schema, lambda of, default: to_json(of, default, style)))


def encode_list(schema: Schema | None, values: list[Any], style: Style) -> list[bytes]:
    """The text of each value (structs as rows or `Struct`). Raises BatchError with every value that does not fit."""
    texts = encoder(schema, style)(values)
    if texts is not None:
        return texts
    texts = []
    errors: dict[int, Exception] = {}
    for index, value in enumerate(values):
        try:
            texts.append(write(to_json(schema, value, style)))
        except DataError as error:
            errors[index] = error
        except (UnicodeEncodeError, OverflowError, RecursionError, TypeError, ValueError) as error:
            errors[index] = DataError(f"Converting Kafka Connect data to byte[] failed: {error}")
    if errors:
        raise BatchError(errors)
    return texts


def java_escapes(text: bytes) -> bytes:
    """Jackson's spelling: control characters in upper case, characters beyond 16 bits as two escaped surrogates."""
    if b"\\" in text and b"\\u00" in text:  # the first look is a memchr, and mostly enough
        text = _lower_hex.sub(lambda match: match[0] if match[1] is None else b"\\u00" + match[1].upper(), text)
    return text if text.isascii() else _four_bytes.sub(_surrogates, text)


def _surrogates(match: re.Match[bytes]) -> bytes:
    offset = ord(match[0].decode()) - 0x10000
    return b"\\u%04X\\u%04X" % (0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF))


def _lines(items: list[Any]) -> list[bytes]:
    """The texts of many items; JSON strings hold no raw newline, so one may cut there."""
    texts = java_escapes(_encoder.encode_lines(items)).split(b"\n")
    texts.pop()
    return texts


ListEncoder = Callable[[list[Any]], "list[bytes] | None"]
"""Encodes a list, or returns None where the values want a closer look."""


@lru_cache(maxsize=1024)
def encoder(schema: Schema | None, style: Style) -> ListEncoder:
    """The function that encodes lists of values of that schema."""
    if schema is None:
        return _encode_schemaless
    if schema.type is Type.STRUCT and schema.fields and plain_names(schema):
        return _struct_encoder(schema, style)
    if schema.type is Type.STRING and not schema.optional:
        return lambda values: _guarded(values) if set(map(type, values)) == {str} else None
    return lambda values: None


def _encode_schemaless(values: list[Any]) -> list[bytes] | None:
    """Flat maps of strings to strings, integers, booleans and nulls; everything else wants a closer look."""
    for value in values:
        if type(value) is not dict or not _SAFE.issuperset(map(type, value.values())):
            return None
        for key in value:
            if type(key) is not str:
                return None
    return _guarded(values)


def _guarded(items: list[Any]) -> list[bytes] | None:
    try:
        return _lines(items)
    except (UnicodeEncodeError, OverflowError):
        return None


def _struct_encoder(schema: Schema, style: Style) -> ListEncoder:
    """Have msgspec check the plain fields of all rows, make objects of them, and have msgspec write these.

    Where some fields need more: ``[Row(v0, f1(v1), …) for v0, v1, … in rows if <what msgspec cannot check>]``.
    """
    names = [f"v{field.index}" for field in schema.fields]
    fields = [(name, Any, msgspec.field(name=field.name)) for name, field in zip(names, schema.fields, strict=True)]
    row_class = msgspec.defstruct("Row", fields, gc=False)
    scope: dict[str, Any] = {"Row": row_class, "double": double_json}
    code = [_field_code(name, field.schema, style, scope) for name, field in zip(names, schema.fields, strict=True)]
    checked: Any = list[tuple[tuple(type_ for _, _, type_ in code)]]  # type: ignore[misc]
    convert = msgspec.convert
    if all(argument == name and not condition for name, (argument, condition, _) in zip(names, code, strict=True)):

        def build(rows: list[Any]) -> list[Any]:
            return list(starmap(row_class, rows))
    else:
        conditions = " and ".join(condition for _, condition, _ in code if condition)
        arguments = ", ".join(argument for argument, _, _ in code)
        where = f" if {conditions}" if conditions else ""
        build = eval(f"lambda rows: [Row({arguments}) for {', '.join(names)}, in rows{where}]", scope)

    def encode(rows: list[Any]) -> list[bytes] | None:
        try:
            convert(rows, checked)
            items = build(rows)
        except (DataError, msgspec.ValidationError, TypeError, ValueError):
            return None
        return _guarded(items) if len(items) == len(rows) else None

    return encode


_PYTHON_TYPES: dict[Type, Any] = {
    **{type_: Annotated[int, msgspec.Meta(ge=low, le=high)] for type_, (low, high) in INT_RANGES.items()},
    Type.STRING: str,
    Type.BOOLEAN: bool,
}
# msgspec would take an integer for a float, and base64 text for bytes.
_CHECKED_INLINE = {Type.FLOAT64: "float", Type.BYTES: "bytes"}


def _field_code(name: str, schema: Schema, style: Style, scope: dict[str, Any]) -> tuple[str, str, Any]:
    """For one field of a row: the expression, the condition under which it is right, and what msgspec shall check."""
    replaced = schema.default is not None and style.replace_null_with_default
    plain = _PYTHON_TYPES.get(schema.type)
    if replaced or is_logical(schema) or (plain is None and schema.type not in _CHECKED_INLINE):
        scope["to" + name] = _bound(schema, style)
        return f"to{name}({name})", "", Any
    if plain is not None:
        return name, "", plain | None if schema.optional else plain
    nullable = f"{name} is None or " if schema.optional else ""
    condition = f"({nullable}type({name}) is {_CHECKED_INLINE[schema.type]})"
    if schema.type is Type.FLOAT64:
        return f"({name} if {nullable}1e-3 <= {name} < 1e7 else double({name}))", condition, Any
    return name, condition, Any


def _bound(schema: Schema, style: Style) -> Callable[[Any], Any]:
    convert = to_base(schema) if is_logical(schema) else None
    class_ = PYTHON_TYPES.get(schema.name or "")
    if convert is None or (schema.name == DECIMAL_NAME and style.numeric_decimals):
        return lambda value: to_json(schema, value, style)
    # The common case of a logical value without a detour; all else takes the checked way.
    return lambda value: convert(value) if type(value) is class_ else to_json(schema, value, style)
