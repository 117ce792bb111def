"""JSON text to Connect values, for Kafka's JsonConverter.

Two ways to the same values. `from_json` turns one parsed value into a Connect value of a schema, with every check; it
is the definition. `Decoder` holds, for one schema, what decodes whole lists: msgspec parses struct payloads straight
into checked fields, which become rows. When that fails for a list, it is gone through value by value.

Values keep what Kafka's converter would silently lose: a text where a number is due, or a number beyond its type's
range, is an error here, not 0 or another number; integers beyond 64 bits without schema stay whole.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from headrace.api.errors import BatchError, DataError
from headrace.converters.json_schema import plain_names
from headrace.data.java import float32
from headrace.data.logical import DECIMAL_NAME, bytes_to_decimal, from_base, is_logical, scale_of
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace.data.struct import row_maker

_exact = msgspec.json.Decoder(float_hook=Decimal)
_plain = msgspec.json.Decoder()
_NULL = msgspec.Raw(b"null")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse(data: bytes) -> Any:
    """The parsed JSON, numbers with a point as exact `Decimal`. Raises DataError."""
    try:
        return _exact.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> DataError:
    """The error for bytes that are not JSON."""
    return DataError(f"Converting byte[] to Kafka Connect data failed due to serialization error: {error}")


# ---- one value, with every check -------------------------------------------------------------------------------------


def from_json(schema: Schema | None, tree: Any, replace_null: bool) -> Any:
    """The Connect value (structs as rows) for parsed JSON. Raises DataError."""
    if schema is None:
        return without_schema(tree)
    if tree is None:
        if schema.default is not None and replace_null:
            return row_maker(schema)(schema.default)
        if schema.optional:
            return None
        raise DataError(f"Invalid null value for required {schema.type.name} field")
    if is_logical(schema):
        return _logical(schema, tree)
    return _READERS[schema.type](schema, tree, replace_null)


def without_schema(tree: Any) -> Any:
    """Parsed JSON as schemaless data: exact numbers with a point become floats."""
    if isinstance(tree, Decimal):
        return float(tree)
    if isinstance(tree, list):
        return [without_schema(item) for item in tree]
    if isinstance(tree, dict):
        return {key: without_schema(item) for key, item in tree.items()}
    return tree


def _logical(schema: Schema, tree: Any) -> Any:
    simple_name = (schema.name or "").rpartition(".")[2]
    if schema.name == DECIMAL_NAME:
        if isinstance(tree, (int, Decimal)) and not isinstance(tree, bool):
            return Decimal(tree)
        if not isinstance(tree, str):
            raise DataError(
                f"Invalid type for Decimal, underlying representation should be numeric or bytes, not {tree!r}"
            )
        return bytes_to_decimal(_base64(tree, "Invalid bytes for Decimal field"), scale_of(schema))
    if not isinstance(tree, int) or isinstance(tree, bool):
        raise DataError(f"Invalid type for {simple_name}, underlying representation should be integer but was {tree!r}")
    convert = from_base(schema)
    return tree if convert is None else convert(tree)


def _base64(text: str, message: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{message}: {error}") from None


def _integer(schema: Schema, tree: Any, replace_null: bool) -> int:
    if not isinstance(tree, (int, Decimal)) or isinstance(tree, bool):
        raise _invalid(schema, tree)
    low, high = INT_RANGES[schema.type]
    # Compared before it is made an int: 1e999999999 would be one of a billion digits.
    if not low - 1 < tree < high + 1:
        raise DataError(f"Number {tree} is out of range for type {schema.type.name}")
    return int(tree)  # 3.7 becomes 3, as Jackson's intValue has it


def _double(schema: Schema, tree: Any, replace_null: bool) -> float:
    if isinstance(tree, str) and tree in _NOT_FINITE:
        return _NOT_FINITE[tree]
    if not isinstance(tree, (int, Decimal)) or isinstance(tree, bool):
        raise _invalid(schema, tree)
    try:
        return float(tree)
    except OverflowError:
        return math.inf if tree > 0 else -math.inf


def _float(schema: Schema, tree: Any, replace_null: bool) -> float:
    return float32(_double(schema, tree, replace_null))


def _boolean(schema: Schema, tree: Any, replace_null: bool) -> bool:
    if not isinstance(tree, bool):
        raise _invalid(schema, tree)
    return tree


def _string(schema: Schema, tree: Any, replace_null: bool) -> str:
    if not isinstance(tree, str):
        raise _invalid(schema, tree)
    return tree


def _bytes(schema: Schema, tree: Any, replace_null: bool) -> bytes:
    if not isinstance(tree, str):
        raise _invalid(schema, tree)
    return _base64(tree, "Invalid bytes field")


def _array(schema: Schema, tree: Any, replace_null: bool) -> list[Any]:
    if not isinstance(tree, list):
        raise _invalid(schema, tree)
    return [from_json(schema.value_schema, item, replace_null) for item in tree]


def _map(schema: Schema, tree: Any, replace_null: bool) -> dict[Any, Any]:
    key_schema, value_schema = schema.key_schema, schema.value_schema
    if key_schema is None or key_schema.type is Type.STRING:
        if not isinstance(tree, dict):
            raise DataError(f"Maps with string fields should be encoded as JSON objects, but found {_kind(tree)}")
        return {key: from_json(value_schema, item, replace_null) for key, item in tree.items()}
    if not isinstance(tree, list):
        raise DataError(
            f"Maps with non-string fields should be encoded as JSON array of tuples, but found {_kind(tree)}"
        )
    items = {}
    for entry in tree:
        if not isinstance(entry, list):
            raise DataError(f"Found invalid map entry instead of array tuple: {_kind(entry)}")
        if len(entry) != 2:
            raise DataError(f"Found invalid map entry, expected length 2 but found :{len(entry)}")
        items[from_json(key_schema, entry[0], replace_null)] = from_json(value_schema, entry[1], replace_null)
    return items


def _struct(schema: Schema, tree: Any, replace_null: bool) -> tuple[Any, ...]:
    if not isinstance(tree, dict):
        raise DataError(f"Structs should be encoded as JSON objects, but found {_kind(tree)}")
    row = []
    for field in schema.fields:
        try:
            row.append(from_json(field.schema, tree.get(field.name), replace_null))
        except DataError as error:
            raise DataError(f'{error} (field "{field.name}")') from None
    return tuple(row)


def _kind(tree: Any) -> str:
    kinds: dict[type, str] = {dict: "OBJECT", list: "ARRAY", str: "STRING", bool: "BOOLEAN", type(None): "NULL"}
    return kinds.get(type(tree), "NUMBER")


def _invalid(schema: Schema, tree: Any) -> DataError:
    shown = repr(tree) if not isinstance(tree, (dict, list)) else _kind(tree)
    return DataError(f"Invalid value for type {schema.type.name}: {shown}")


_READERS: dict[Type, Callable[[Schema, Any, bool], Any]] = {
    Type.INT8: _integer,
    Type.INT16: _integer,
    Type.INT32: _integer,
    Type.INT64: _integer,
    Type.FLOAT32: _float,
    Type.FLOAT64: _double,
    Type.BOOLEAN: _boolean,
    Type.STRING: _string,
    Type.BYTES: _bytes,
    Type.ARRAY: _array,
    Type.MAP: _map,
    Type.STRUCT: _struct,
}


# ---- whole lists -----------------------------------------------------------------------------------------------------


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

    def decode_list(self, payloads: Sequence[bytes]) -> list[Any]:
        """Every value, structs as rows. Raises BatchError naming every payload that cannot be read."""
        if self._fast is not None:
            try:
                return self._fast(payloads)
            except (msgspec.MsgspecError, DataError, UnicodeDecodeError, RecursionError, ArithmeticError):
                pass  # looked at one by one below: some are bad, or right in a way that only `from_json` knows
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


_ListDecoder = Callable[[Sequence[bytes]], list[Any]]


def _fast_decoder(schema: Schema | None, replace_null: bool) -> _ListDecoder | None:
    if schema is None:
        return lambda payloads: list(map(_plain.decode, payloads))
    if schema.type is Type.STRUCT and schema.fields and not schema.optional and plain_names(schema):
        return _struct_decoder(schema, replace_null)
    return None


def _struct_decoder(schema: Schema, replace_null: bool) -> _ListDecoder:
    """Let msgspec check names, types and ranges; run what it cannot know (`after`) over the rows."""
    fields: list[Any] = []
    after: dict[int, Callable[[Any], Any]] = {}
    for field in schema.fields:
        type_, convert = _field_plan(field.schema, replace_null)
        if convert is not None:
            after[field.index] = convert
        default = _NULL if type_ is msgspec.Raw else None if field.schema.optional else msgspec.NODEFAULT
        fields.append((f"v{field.index}", type_, msgspec.field(name=field.name, default=default)))
    decode = msgspec.json.Decoder(msgspec.defstruct("Row", fields, gc=False, kw_only=True)).decode
    as_tuple = msgspec.structs.astuple
    if not after:
        return lambda payloads: list(map(as_tuple, map(decode, payloads)))
    finish = _row_finisher(len(fields), after)
    return lambda payloads: finish(map(as_tuple, map(decode, payloads)))


def _row_finisher(width: int, after: dict[int, Callable[[Any], Any]]) -> Callable[[Any], list[Any]]:
    names = ", ".join(f"v{index}" for index in range(width))
    parts = ", ".join(f"f{index}(v{index})" if index in after else f"v{index}" for index in range(width))
    scope = {f"f{index}": convert for index, convert in after.items()}
    finisher: Callable[[Any], list[Any]] = eval(f"lambda rows: [({parts},) for {names}, in rows]", scope)
    return finisher


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
