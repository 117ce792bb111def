"""Decodes whole lists of JSON texts to Connect values in columnar form.

msgspec parses each text into an object with one slot per field, and checks types and ranges. Each slot then becomes a
column. The values are identical to those of `headrace.converters.json_decoding`, the reference implementation. If
msgspec rejects a list, `json_decoding` decodes the list value by value. A rejected list contains invalid values, or
values in a form that only `json_decoding` supports. Maps without a schema become columns only if all maps of the list
have the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

import msgspec

from headrace.api.errors import DataError, RecordErrors
from headrace.converters.json_decoding import from_json, parse
from headrace.data.columns import Columns, Values
from headrace.data.java import float32
from headrace.data.json_schema import has_plain_names
from headrace.data.logical import COUNT_RANGES, DECIMAL_NAME, PYTHON_TYPES
from headrace.data.schema import INT_RANGES, Schema, Type

_ListDecoder = Callable[[Sequence[bytes]], Values]

_plain_decoder = msgspec.json.Decoder()
_NULL = msgspec.Raw(b"null")
_MIN_MAPS_FOR_COLUMNS = 16  # for fewer maps, compiling a decoder for their keys costs more than it saves
_MAP_KEYS_MAX = 200


class PayloadDecoder:
    """Decodes the payloads of one schema (None for schemaless payloads)."""

    __slots__ = ("_fast", "_replace_null", "schema")
    schema: Schema | None

    def __init__(self, schema: Schema | None, replace_null: bool) -> None:
        self.schema = schema
        self._replace_null = replace_null
        self._fast = _fast_decoder(schema, replace_null)

    def decode(self, payload: bytes) -> Any:
        """Decode one value. Raises DataError."""
        return from_json(self.schema, parse(payload), self._replace_null)

    def decode_list(self, payloads: Sequence[bytes]) -> Values:
        """Decode every value. Raises RecordErrors with an error per invalid payload.

        If msgspec decodes a list of structs, the result is `Columns`. If `from_json` decodes it value by value, the
        result is a list of rows.
        """
        if self._fast is not None:
            try:
                return self._fast(payloads)
            except (msgspec.MsgspecError, DataError, UnicodeDecodeError, RecursionError, ArithmeticError):
                pass  # decode the values one by one below
        values = []
        errors: dict[int, Exception] = {}
        for index, payload in enumerate(payloads):
            try:
                values.append(self.decode(payload))
            except DataError as error:
                errors[index] = error
        if errors:
            raise RecordErrors(errors)
        return values


def _fast_decoder(schema: Schema | None, replace_null: bool) -> _ListDecoder | None:
    if schema is None:
        return _decode_without_schema
    if schema.type is Type.STRUCT and schema.fields and not schema.optional and has_plain_names(schema):
        return _struct_decoder(schema, replace_null)
    if schema.type.is_primitive:
        return _primitive_decoder(schema, replace_null)
    return None


# ---- without schema --------------------------------------------------------------------------------------------------


def _decode_without_schema(payloads: Sequence[bytes]) -> Values:
    """Decode schemaless payloads: to columns if all are maps with the same keys, otherwise to a list of values."""
    if len(payloads) >= _MIN_MAPS_FOR_COLUMNS:
        first = _plain_decoder.decode(payloads[0])
        decode = _map_decoder(tuple(first)) if type(first) is dict and 0 < len(first) <= _MAP_KEYS_MAX else None
        if decode is not None:
            try:
                return decode(payloads)
            except msgspec.ValidationError:
                pass  # a payload has other keys or is not a map
    return list(map(_plain_decoder.decode, payloads))


@lru_cache(maxsize=256)
def _map_decoder(names: tuple[str, ...]) -> _ListDecoder | None:
    """Return a decoder for maps with exactly these keys, or None if a key contains characters that JSON escapes."""
    try:
        decode = _compile_column_decoder(list(zip(names, [Any] * len(names), strict=True)), forbid_unknown_fields=True)
    except ValueError:
        return None
    return lambda payloads: Columns(names, decode(payloads), len(payloads), is_maps=True)


# ---- primitive values ------------------------------------------------------------------------------------------------


def _primitive_decoder(schema: Schema, replace_null: bool) -> _ListDecoder | None:
    """Return a function that decodes primitive values to a list. Return None if only `from_json` can decode them."""
    type_, convert = _field_plan(schema, replace_null)
    if type_ is msgspec.Raw:
        return None
    decode = msgspec.json.Decoder(type_).decode
    if convert is None:
        return lambda payloads: list(map(decode, payloads))
    return lambda payloads: convert(list(map(decode, payloads)))


# ---- structs ---------------------------------------------------------------------------------------------------------


def _struct_decoder(schema: Schema, replace_null: bool) -> _ListDecoder:
    """Return a function that decodes JSON objects to struct columns.

    msgspec checks names, types and ranges. The columns of some types, for example logical types, are then converted.
    `replace_null` has the same meaning as in `from_json`.
    """
    names = [field.name for field in schema.fields]
    fields: list[Any] = []
    conversions: list[tuple[int, Callable[[list[Any]], list[Any]]]] = []
    for field in schema.fields:
        type_, convert = _field_plan(field.schema, replace_null)
        if convert is not None:
            conversions.append((field.index, convert))
        default = _NULL if type_ is msgspec.Raw else None if field.schema.optional else msgspec.NODEFAULT
        fields.append((field.name, type_, default))
    decode = _compile_column_decoder(fields)

    def decode_structs(payloads: Sequence[bytes]) -> Columns:
        columns = decode(payloads)
        for index, convert in conversions:
            columns[index] = convert(columns[index])
        return Columns(names, columns, len(payloads), is_maps=False)

    return decode_structs


_MSGSPEC_TYPES: dict[Type, Any] = {
    **{type_: Annotated[int, msgspec.Meta(ge=low, le=high)] for type_, (low, high) in INT_RANGES.items()},
    Type.FLOAT32: float,
    Type.FLOAT64: float,
    Type.BOOLEAN: bool,
    Type.STRING: str,
    Type.BYTES: bytes,
}


def _field_plan(schema: Schema, replace_null: bool) -> tuple[Any, Callable[[list[Any]], list[Any]] | None]:
    """Return the type with which msgspec decodes a value, and the conversion of a list of results (or None).

    `replace_null` has the same meaning as in `from_json`.
    """
    if schema.default is not None or schema.name == DECIMAL_NAME or not schema.type.is_primitive:
        return msgspec.Raw, lambda raws: [from_json(schema, parse(raw), replace_null) for raw in raws]
    type_ = _MSGSPEC_TYPES[schema.type]
    convert: Callable[[Any], Any] | None = float32 if schema.type is Type.FLOAT32 else None
    if (name := schema.name or "") in COUNT_RANGES:
        low, high = COUNT_RANGES[name]
        type_, convert = Annotated[int, msgspec.Meta(ge=low, le=high)], PYTHON_TYPES[name]
    return type_ | None if schema.optional else type_, None if convert is None else partial(_convert_column, convert)


def _convert_column(convert: Callable[[Any], Any], column: list[Any]) -> list[Any]:
    """Convert each value of a column except nulls."""
    if None in column:
        return [None if value is None else convert(value) for value in column]
    return list(map(convert, column))


# ---- slots -----------------------------------------------------------------------------------------------------------


def _compile_column_decoder(
    fields: Sequence[tuple[Any, ...]], **options: Any
) -> Callable[[Sequence[bytes]], list[list[Any]]]:
    """Return a function that decodes a list of JSON objects to one list per field.

    `fields` contains the name, type and optional default of each field. Raises ValueError for a name with characters
    that JSON escapes.
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
