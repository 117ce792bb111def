"""Whole lists of JSON texts to Connect values, field by field.

msgspec parses each text straight into an object with one slot for each field, checked as far as it can, and the slots
become columns. What it takes has the very value that `headrace.converters.json_decoding` gives, which is the
definition; what it does not take is gone through value by value there: some are bad, or right in a way that only
`from_json` knows, or maps with other keys than the first one has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from headrace.api.errors import BatchError, DataError
from headrace.converters.json_decoding import from_json, parse
from headrace.converters.json_schema import plain_names
from headrace.data.columns import Columns, Values
from headrace.data.java import float32
from headrace.data.logical import DECIMAL_NAME, from_base, is_logical
from headrace.data.schema import INT_RANGES, Schema, Type

_ListDecoder = Callable[[Sequence[bytes]], Values]

_plain = msgspec.json.Decoder()
_NULL = msgspec.Raw(b"null")
_MAPS_MIN = 16  # for fewer maps it does not pay to look at their keys
_MAP_KEYS_MAX = 200


class Decoder:
    """Decodes payloads of one schema (None: without schema)."""

    __slots__ = ("_fast", "_replace_null", "schema")
    schema: Schema | None

    def __init__(self, schema: Schema | None, replace_null: bool) -> None:
        self.schema = schema
        self._replace_null = replace_null
        self._fast = _fast_decoder(schema, replace_null)

    def decode(self, payload: bytes) -> Any:
        """One value. Raises DataError."""
        return from_json(self.schema, parse(payload), self._replace_null)

    def decode_list(self, payloads: Sequence[bytes]) -> Values:
        """Every value, structs as rows. Raises BatchError naming every payload that cannot be read."""
        if self._fast is not None:
            try:
                return self._fast(payloads)
            except (msgspec.MsgspecError, DataError, UnicodeDecodeError, RecursionError, ArithmeticError):
                pass  # looked at one by one below
        values = []
        errors: dict[int, Exception] = {}
        for index, payload in enumerate(payloads):
            try:
                values.append(self.decode(payload))
            except DataError as error:
                errors[index] = error
        if errors:
            raise BatchError(errors)
        return values


def _fast_decoder(schema: Schema | None, replace_null: bool) -> _ListDecoder | None:
    if schema is None:
        return _decode_without_schema
    if schema.type is Type.STRUCT and schema.fields and not schema.optional and plain_names(schema):
        return _struct_decoder(schema, replace_null)
    return None


# ---- without schema --------------------------------------------------------------------------------------------------


def _decode_without_schema(payloads: Sequence[bytes]) -> Values:
    """By column where all are maps with the keys of the first (in its order), else a list."""
    if len(payloads) >= _MAPS_MIN:
        first = _plain.decode(payloads[0])
        decode = _map_decoder(tuple(first)) if type(first) is dict and 0 < len(first) <= _MAP_KEYS_MAX else None
        if decode is not None:
            try:
                return decode(payloads)
            except msgspec.ValidationError:
                pass  # another map, or no map
    return list(map(_plain.decode, payloads))


@lru_cache(maxsize=256)
def _map_decoder(names: tuple[str, ...]) -> _ListDecoder | None:
    """A decoder for maps of exactly these keys; None where a key cannot be told without its escapes."""
    try:
        decode = _slots(list(zip(names, [Any] * len(names), strict=True)), forbid_unknown_fields=True)
    except ValueError:
        return None
    return lambda payloads: Columns(names, decode(payloads), len(payloads), is_maps=True)


# ---- structs ---------------------------------------------------------------------------------------------------------


def _struct_decoder(schema: Schema, replace_null: bool) -> _ListDecoder:
    """Let msgspec check names, types and ranges; run what it cannot know (`after`) over the columns."""
    names = [field.name for field in schema.fields]
    fields: list[Any] = []
    after: list[tuple[int, Callable[[Any], Any]]] = []
    for field in schema.fields:
        type_, convert = _field_plan(field.schema, replace_null)
        if convert is not None:
            after.append((field.index, convert))
        default = _NULL if type_ is msgspec.Raw else None if field.schema.optional else msgspec.NODEFAULT
        fields.append((field.name, type_, default))
    decode = _slots(fields)

    def decode_structs(payloads: Sequence[bytes]) -> Columns:
        columns = decode(payloads)
        for index, convert in after:
            columns[index] = list(map(convert, columns[index]))
        return Columns(names, columns, len(payloads), is_maps=False)

    return decode_structs


_SIMPLE: dict[Type, Any] = {
    **{type_: Annotated[int, msgspec.Meta(ge=low, le=high)] for type_, (low, high) in INT_RANGES.items()},
    Type.FLOAT32: float,
    Type.FLOAT64: float,
    Type.BOOLEAN: bool,
    Type.STRING: str,
    Type.BYTES: bytes,
}


def _field_plan(schema: Schema, replace_null: bool) -> tuple[Any, Callable[[Any], Any] | None]:
    """What msgspec reads a struct's field as, and what is left to do then."""
    if schema.default is not None or schema.name == DECIMAL_NAME or not schema.type.is_primitive:
        return msgspec.Raw, lambda raw: from_json(schema, parse(raw), replace_null)
    convert: Callable[[Any], Any] | None = float32 if schema.type is Type.FLOAT32 else None
    if is_logical(schema):
        convert = from_base(schema)
    if not schema.optional:
        return _SIMPLE[schema.type], convert
    return _SIMPLE[schema.type] | None, _unless_none(convert)


def _unless_none(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


# ---- slots -----------------------------------------------------------------------------------------------------------


def _slots(fields: Sequence[tuple[Any, ...]], **options: Any) -> Callable[[Sequence[bytes]], list[list[Any]]]:
    """The function from JSON objects with these fields (name, type, default) to a list of items for each.

    Raises ValueError for a name with characters that JSON escapes.
    """
    slots = [f"v{index}" for index in range(len(fields))]
    row = msgspec.defstruct(
        "Row",
        [
            (slot, type_, msgspec.field(name=name, default=default[0] if default else msgspec.NODEFAULT))
            for slot, (name, type_, *default) in zip(slots, fields, strict=True)
        ],
        gc=False,
        kw_only=True,
        **options,
    )
    decode = msgspec.json.Decoder(row).decode
    columns = ", ".join(f"[row.{slot} for row in rows]" for slot in slots)
    split: Callable[[list[Any]], list[list[Any]]] = eval(f"lambda rows: [{columns}]")
    return lambda payloads: split(list(map(decode, payloads)))
