"""Decodes JSON text to Connect values, one value at a time, for JsonConverter.

`from_json` converts one parsed value to a Connect value of a schema and performs all checks. It is the reference
implementation. `headrace.converters.json_lists` decodes whole lists faster with the same results.

Unlike Kafka's JsonConverter, this converter rejects a string in a numeric field, and an integer outside the range of
its type; Kafka's converter silently reads 0 or another number. Schemaless integers of more than 64 bits are kept. As in
Kafka, a number in an integer field loses its fraction.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from headrace.api.errors import DataError
from headrace.data.errors import in_field
from headrace.data.java import float32
from headrace.data.logical import DECIMAL_NAME, bytes_to_decimal, from_base, is_logical, scale_of
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace.data.struct import row_converter

_exact = msgspec.json.Decoder(float_hook=Decimal)
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # starts with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODINGS = {
    (False, True, False, True): "utf-16-be",
    (False, True): "utf-16-be",
    (True, False, True, False): "utf-16-le",
    (True, False): "utf-16-le",
    (False, False, False, True): "utf-32-be",
    (True, False, False, False): "utf-32-le",
}
"""The encoding of JSON, by which of its first bytes are not zero."""
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse(data: bytes) -> Any:
    """Parse JSON. A number with a decimal point or an exponent becomes an exact `Decimal`.

    Raises DataError, or RecursionError if the JSON has too many nested levels.
    """
    try:
        return _exact.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError) as error:
        raise invalid_json_error(error) from None


def to_utf8(data: bytes) -> bytes:
    """Convert JSON in UTF-16 or UTF-32 to UTF-8, and remove a byte order mark. Raises DataError.

    As in Jackson, the first bytes determine the encoding: JSON starts with an ASCII character.
    """
    first = data[:4]
    if 0 not in first and first.isascii():  # the usual case
        return data
    encoding = next((encoding for start, encoding in _BYTE_ORDER_MARKS if data.startswith(start)), None)
    if encoding is None and 0 in first and len(data) > 1:
        encoding = _ENCODINGS.get(tuple(byte != 0 for byte in first))
    if encoding is None:
        return data
    try:
        return data.decode(encoding).removeprefix("\ufeff").encode()
    except UnicodeError as error:
        raise invalid_json_error(error) from None


def invalid_json_error(error: Exception) -> DataError:
    """Return the DataError for bytes that are not JSON. `error` is the reason."""
    return DataError(f"Converting byte[] to Kafka Connect data failed due to serialization error: {error}")


# ---- one value, with every check -------------------------------------------------------------------------------------


def from_json(schema: Schema | None, tree: Any, replace_null: bool) -> Any:
    """Convert parsed JSON to a Connect value, in which each struct is a row (a tuple). Raises DataError.

    If `replace_null` is true, a null is replaced with the default of its schema, if there is one.
    """
    if schema is None:
        return without_schema(tree)
    if tree is None:
        if schema.default is not None and replace_null:
            return row_converter(schema)(schema.default)
        if schema.optional:
            return None
        raise DataError(f"Invalid null value for required {schema.type.name} field")
    if is_logical(schema):
        return _logical(schema, tree)
    return _PARSERS[schema.type](schema, tree, replace_null)


def without_schema(tree: Any) -> Any:
    """Convert parsed JSON to schemaless data: `Decimal` becomes float."""
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
    # Compare before converting to int: 1e999999999 would become an int of a billion digits.
    if not low - 1 < tree < high + 1:
        raise DataError(f"Number {tree} is out of range for type {schema.type.name}")
    return int(tree)  # 3.7 becomes 3, as with Jackson's intValue


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
    items: list[Any] = []
    try:
        for item in tree:
            items.append(from_json(schema.value_schema, item, replace_null))  # noqa: PERF401 - counts the converted items
    except DataError as error:
        raise in_field(error, f"[{len(items)}]") from None
    return items


def _map(schema: Schema, tree: Any, replace_null: bool) -> dict[Any, Any]:
    key_schema, value_schema = schema.key_schema, schema.value_schema
    items: dict[Any, Any] = {}
    if key_schema is None or key_schema.type is Type.STRING:
        if not isinstance(tree, dict):
            raise DataError(f"Maps with string fields should be encoded as JSON objects, but found {_kind(tree)}")
        key = ""
        try:
            for key, item in tree.items():
                items[key] = from_json(value_schema, item, replace_null)
        except DataError as error:
            raise in_field(error, key) from None
        return items
    if not isinstance(tree, list):
        raise DataError(
            f"Maps with non-string fields should be encoded as JSON array of tuples, but found {_kind(tree)}"
        )
    for index, entry in enumerate(tree):
        if not isinstance(entry, list):
            raise in_field(DataError(f"Found invalid map entry instead of array tuple: {_kind(entry)}"), f"[{index}]")
        if len(entry) != 2:
            wrong_length = DataError(f"Found invalid map entry, expected length 2 but found :{len(entry)}")
            raise in_field(wrong_length, f"[{index}]")
        try:
            items[from_json(key_schema, entry[0], replace_null)] = from_json(value_schema, entry[1], replace_null)
        except DataError as error:
            raise in_field(error, f"[{index}]") from None
    return items


def _struct(schema: Schema, tree: Any, replace_null: bool) -> tuple[Any, ...]:
    if not isinstance(tree, dict):
        raise DataError(f"Structs should be encoded as JSON objects, but found {_kind(tree)}")
    row = []
    for field in schema.fields:
        try:
            row.append(from_json(field.schema, tree.get(field.name), replace_null))
        except DataError as error:
            raise in_field(error, field.name) from None
    return tuple(row)


def _kind(tree: Any) -> str:
    kinds: dict[type, str] = {dict: "OBJECT", list: "ARRAY", str: "STRING", bool: "BOOLEAN", type(None): "NULL"}
    return kinds.get(type(tree), "NUMBER")


def _invalid(schema: Schema, tree: Any) -> DataError:
    shown = repr(tree) if not isinstance(tree, (dict, list)) else _kind(tree)
    return DataError(f"Invalid value for type {schema.type.name}: {shown}")


_PARSERS: dict[Type, Callable[[Schema, Any, bool], Any]] = {
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
