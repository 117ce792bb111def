"""Encodes whole lists of Connect values as JSON text, byte for byte as Jackson does for Kafka's JsonConverter.

In a batch, a STRUCT value is a row: a tuple of the field values. msgspec validates and encodes all rows of a list at
once. If fields need a conversion, generated Python code performs the conversion. If this fast path does not support a
list, `encode_list` encodes value by value with `headrace.data.json_values`, the reference implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import starmap
from typing import Annotated, Any

import msgspec

from headrace.api.errors import DataError, RecordErrors
from headrace.data.deep_recursion import deep_recursion
from headrace.data.json_schema import has_plain_names, schema_to_json
from headrace.data.json_values import EncodingOptions, double_json, to_json
from headrace.data.logical import COUNT_RANGES, DECIMAL_NAME, PYTHON_TYPES, is_logical, to_base
from headrace.data.schema import INT_RANGES, Schema, Type

_encoder = msgspec.json.Encoder()
_lower_hex = re.compile(rb"\\(?:\\|u00([01][0-9a-f]))")
_four_bytes = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_surrogate = re.compile("([\ud800-\udfff])")
_VALUES_PER_CHUNK = 1000
"""The number of values that are encoded at once. 10,000 rows of 20 columns exceed the CPU cache, and encoding them at
once takes a third longer per row."""
_PLAIN_TYPES = {str, int, bool, type(None)}
_TEXT_TYPES = {str}


def encode_tree(tree: Any) -> bytes:
    """Return the JSON text of `tree`, for example of a result of `to_json`."""
    try:
        text = _encoder.encode(tree)
    except (UnicodeEncodeError, OverflowError):
        text = _encode_exotic(tree)
    return java_escapes(text)


def _encode_exotic(tree: Any) -> bytes:
    """Encode a tree with what msgspec rejects: unpaired surrogates and integers of more than 64 bits."""
    if isinstance(tree, dict):
        pairs = (_encode_exotic(name) + b":" + _encode_exotic(item) for name, item in tree.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(tree, (list, tuple)):
        return b"[" + b",".join(map(_encode_exotic, tree)) + b"]"
    if isinstance(tree, str):
        parts = _surrogate.split(tree)  # every second part is a surrogate
        encoded = (b"\\u%04X" % ord(part) if at % 2 else _encoder.encode(part)[1:-1] for at, part in enumerate(parts))
        return b'"' + b"".join(encoded) + b'"'
    return str(tree).encode() if type(tree) is int else _encoder.encode(tree)


def encode_schema(schema: Schema, options: EncodingOptions) -> bytes:
    """Return a schema as JSON text, as in the ``schema`` part of JsonConverter's envelope."""
    return encode_tree(schema_to_json(schema, lambda of, default: to_json(of, default, options)))


def encode_list(
    schema: Schema | None, values: list[Any], options: EncodingOptions, *, is_checked: bool = False
) -> list[bytes]:
    """Return the JSON text of each value. A STRUCT value is a row (a tuple of the field values) or a `Struct` object.

    If `is_checked` is true, the values are known to match the schema. Otherwise this function raises RecordErrors,
    which contains an error for each value that does not match the schema.
    """
    encode = list_encoder(schema, options, is_checked)
    texts: list[bytes] = []
    errors: dict[int, Exception] = {}
    for start in range(0, len(values), _VALUES_PER_CHUNK):
        chunk = values[start : start + _VALUES_PER_CHUNK]
        encoded = encode(chunk)
        texts += _encode_one_by_one(schema, chunk, options, start, errors) if encoded is None else encoded
    if errors:
        raise RecordErrors(errors)
    return texts


def _encode_one_by_one(
    schema: Schema | None, values: list[Any], options: EncodingOptions, start: int, errors: dict[int, Exception]
) -> list[bytes]:
    """Return the JSON text of each value that matches the schema.

    Put the errors of the other values into `errors`. The index of the first value is `start`.
    """
    texts = []
    for index, value in enumerate(values, start):
        try:
            try:
                texts.append(encode_tree(to_json(schema, value, options)))
            except RecursionError:
                with deep_recursion():
                    texts.append(encode_tree(to_json(schema, value, options)))
        except DataError as error:
            errors[index] = error
        except (RecursionError, TypeError, ValueError) as error:
            errors[index] = DataError(f"Converting Kafka Connect data to byte[] failed: {error}")
    return texts


def java_escapes(text: bytes) -> bytes:
    r"""Return JSON text with the same escapes as in Jackson's JSON text.

    An escape such as ``\u001f`` becomes ``\u001F``. Each unescaped character above U+FFFF becomes a pair of escaped
    surrogates, for example ``\uD83D\uDE00``.
    """
    if b"\\" in text and b"\\u00" in text:  # the first test is a fast memchr and usually fails
        text = _lower_hex.sub(lambda match: match[0] if match[1] is None else b"\\u00" + match[1].upper(), text)
    return text if text.isascii() else _four_bytes.sub(_surrogates, text)


def _surrogates(match: re.Match[bytes]) -> bytes:
    offset = ord(match[0].decode()) - 0x10000
    return b"\\u%04X\\u%04X" % (0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF))


def _encode_lines(items: list[Any]) -> list[bytes]:
    """Encode all items in one call, then split the text at newlines. An item's JSON never contains a raw newline."""
    texts = java_escapes(_encoder.encode_lines(items)).split(b"\n")
    texts.pop()
    return texts


ListEncoder = Callable[[list[Any]], "list[bytes] | None"]
"""Encodes a list; returns None if the values have to be encoded one by one."""


@lru_cache(maxsize=1024)
def list_encoder(schema: Schema | None, options: EncodingOptions, is_checked: bool = False) -> ListEncoder:
    """Return the function that encodes lists of values with this schema. `is_checked` is explained in `encode_list`."""
    if schema is None:
        return _encode_schemaless
    if schema.type is Type.STRUCT and schema.fields and has_plain_names(schema):
        return _struct_encoder(schema, options, is_checked)
    if schema.type is Type.STRING and not schema.optional:
        return lambda values: _try_encode_lines(values) if set(map(type, values)) == {str} else None
    return lambda values: None


def _encode_schemaless(values: list[Any]) -> list[bytes] | None:
    """Encode a list of flat maps. If the list contains any other value, return None for the whole list.

    The keys of a flat map are strings. Its values are strings, integers, booleans and nulls.
    """
    for value in values:
        if type(value) is not dict or not _PLAIN_TYPES.issuperset(map(type, value.values())):
            return None
        if not _TEXT_TYPES.issuperset(map(type, value)):
            return None
    return _try_encode_lines(values)


def _try_encode_lines(items: list[Any]) -> list[bytes] | None:
    try:
        return _encode_lines(items)
    except (UnicodeEncodeError, OverflowError, TypeError):  # a TypeError for a subclass of int
        return None


def _struct_encoder(schema: Schema, options: EncodingOptions, is_checked: bool) -> ListEncoder:
    """Return an encoder of structs, which creates an object from each row and encodes the objects with msgspec.

    Unless `is_checked` is true, msgspec first validates all rows, except the fields that it cannot check.

    If some fields need a conversion or a check that msgspec lacks, generated code creates the objects:
    ``[Row(v0, f1(v1), …) for v0, v1, … in rows if <conditions that msgspec cannot check>]``.
    """
    names = [f"v{field.index}" for field in schema.fields]
    fields = [(name, Any, msgspec.field(name=field.name)) for name, field in zip(names, schema.fields, strict=True)]
    row_class = msgspec.defstruct("Row", fields, gc=False)
    scope: dict[str, Any] = {"Row": row_class, "double": double_json}
    code = [_field_code(name, field.schema, options, scope) for name, field in zip(names, schema.fields, strict=True)]
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
            if not is_checked:
                convert(rows, checked)
            items = build(rows)
        except (DataError, msgspec.ValidationError, TypeError, ValueError):
            return None
        return _try_encode_lines(items) if len(items) == len(rows) else None

    return encode


_COUNTS: dict[str | None, Any] = {
    name: Annotated[int, msgspec.Meta(ge=low, le=high)] for name, (low, high) in COUNT_RANGES.items()
}
_PYTHON_TYPES: dict[Type, Any] = {
    **{type_: Annotated[int, msgspec.Meta(ge=low, le=high)] for type_, (low, high) in INT_RANGES.items()},
    Type.STRING: str,
    Type.BOOLEAN: bool,
}
# msgspec would accept an integer as a float, and base64 text as bytes.
_CHECKED_INLINE = {Type.FLOAT64: "float", Type.BYTES: "bytes"}


def _field_code(name: str, schema: Schema, options: EncodingOptions, scope: dict[str, Any]) -> tuple[str, str, Any]:
    """Return (expression, condition, type) for a field of a struct.

    The expression is code for the field's JSON value. The condition is code that checks the field's value. The type is
    the type with which msgspec checks the value. `scope` receives the functions that the code calls.
    """
    nullable = f"{name} is None or " if schema.optional else ""
    replaced = schema.default is not None and options.replace_null_with_default
    count = _COUNTS.get(schema.name)
    if count is not None and not replaced:
        # Unary plus converts a Timestamp to a plain int, the only kind of integer that msgspec encodes.
        return (
            (f"(None if {name} is None else +{name})", "", count | None) if schema.optional else (f"+{name}", "", count)
        )
    plain = _PYTHON_TYPES.get(schema.type)
    if replaced or is_logical(schema) or (plain is None and schema.type not in _CHECKED_INLINE):
        scope["to" + name] = _field_encoder(schema, options)
        return f"to{name}({name})", "", Any
    if plain is not None:
        return name, "", plain | None if schema.optional else plain
    condition = f"({nullable}type({name}) is {_CHECKED_INLINE[schema.type]})"
    if schema.type is Type.FLOAT64:
        return f"({name} if {nullable}1e-3 <= {name} < 1e7 else double({name}))", condition, Any
    return name, condition, Any


def _field_encoder(schema: Schema, options: EncodingOptions) -> Callable[[Any], Any]:
    convert = to_base(schema) if is_logical(schema) else None
    class_ = PYTHON_TYPES.get(schema.name or "")
    if convert is None or (schema.name == DECIMAL_NAME and options.numeric_decimals):
        return lambda value: to_json(schema, value, options)
    # The common case of a logical value is converted directly; `to_json` checks everything else.
    return lambda value: convert(value) if type(value) is class_ else to_json(schema, value, options)
