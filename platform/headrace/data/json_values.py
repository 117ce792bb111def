"""Converts one Connect value to Python objects that msgspec encodes as the JSON payload of JsonConverter.

This module is the reference implementation. `headrace.data.json_encoding` encodes whole lists faster.

Floating point numbers are printed as in Java. NaN and infinities become strings. Bytes are encoded in base64, and
Decimals in base64 or as numbers. Maps whose keys are not strings become arrays of pairs. Structs always contain every
field. Map keys keep their insertion order, while Kafka's converter writes them in the order of Java's HashMap.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from headrace.api.errors import DataError
from headrace.data.errors import in_field
from headrace.data.java import double_text, float_text
from headrace.data.logical import (
    COUNT_RANGES,
    PYTHON_TYPES,
    checked_count,
    decimal_to_bytes,
    is_logical,
    scale_of,
    to_count,
)
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace.data.struct import Struct
from headrace.data.values import STRUCT_NEEDED, infer_type, schema_difference


class EncodingOptions(NamedTuple):
    """The options of JsonConverter that affect the encoded text."""

    numeric_decimals: bool = False
    replace_null_with_default: bool = True


def to_json(schema: Schema | None, value: Any, options: EncodingOptions) -> Any:
    """Convert a value to Python objects that msgspec encodes as JSON. Raises DataError."""
    if value is None:
        return _null(schema, options)
    if schema is None:
        return _schemaless(value, options)
    if is_logical(schema):
        return _logical(schema, value, options)
    return _WRITERS[schema.type](schema, value, options)


def _null(schema: Schema | None, options: EncodingOptions) -> Any:
    if schema is None:
        return None
    if schema.default is not None and options.replace_null_with_default:
        return to_json(schema, schema.default, options)
    if schema.optional:
        return None
    raise DataError(
        "Conversion error: null value for field that is required and has no default value, "
        f"schema type: {schema.type.name}"
    )


def _schemaless(value: Any, options: EncodingOptions) -> Any:
    type_ = infer_type(value)
    if type_ is None:
        raise DataError(f"{type(value).__name__} does not have a corresponding schema type.")
    if type_ is Type.INT64:
        return value
    if type_ is Type.ARRAY:
        items: list[Any] = []
        try:
            for item in value:
                items.append(to_json(None, item, options))  # noqa: PERF401 - counts the converted items
        except DataError as error:
            raise in_field(error, f"[{len(items)}]") from None
        return items
    if type_ is Type.MAP:
        return _map(None, None, all(isinstance(key, str) for key in value), value, options)
    if type_ is Type.STRUCT:
        raise DataError(
            "Mismatching schema: the struct has a schema, but the record has none; set the record's schema to the "
            "schema of the struct, or use a dict"
        )
    return _WRITERS[type_](_SCHEMALESS, value, options)


def _logical(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    name = schema.name or ""
    if name in COUNT_RANGES:
        value = to_count(name, value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int(checked_count(name, value))
    elif isinstance(value, Decimal):
        return _number(value) if options.numeric_decimals else decimal_to_bytes(value, scale_of(schema))
    expected = PYTHON_TYPES[name].__name__
    raise DataError(f"Invalid type for {name.rpartition('.')[2]}, expected {expected} but was {type(value).__name__}")


def _number(value: Any) -> Any:
    if not value.is_finite():
        raise DataError(f"Invalid value {value}: a Decimal must be a finite number")
    return msgspec.Raw(str(value).encode())


def _integer(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(schema, value)
    low, high = INT_RANGES[schema.type]
    if not low <= value <= high:
        raise DataError(f"Value {value} is out of range for type {schema.type.name}")
    return int(value)  # msgspec does not encode subclasses such as Timestamp


def _double(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, float):
        raise _invalid(schema, value)
    return double_json(value)


def double_json(value: float) -> Any:
    """Convert a double to a value that msgspec encodes in Java's format.

    From 1e-3 to 1e7, msgspec's own format is the same as Java's.
    """
    if 1e-3 <= value < 1e7:
        return value
    text = double_text(value)
    return msgspec.Raw(text.encode()) if text[-1].isdigit() else text


def _float(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, float):
        raise _invalid(schema, value)
    text = float_text(value)
    return msgspec.Raw(text.encode()) if text[-1].isdigit() else text


def _boolean(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, bool):
        raise _invalid(schema, value)
    return value


def _string(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, str):
        raise _invalid(schema, value)
    return value


def _bytes(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise DataError(f"Invalid type for bytes type: {type(value).__name__}")
    return base64.b64encode(value).decode()


def _array(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, list):
        raise _invalid(schema, value)
    items: list[Any] = []
    try:
        for item in value:
            items.append(to_json(schema.value_schema, item, options))  # noqa: PERF401 - counts the converted items
    except DataError as error:
        raise in_field(error, f"[{len(items)}]") from None
    return items


def _map_with_schema(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if not isinstance(value, dict):
        raise _invalid(schema, value)
    key_schema = schema.key_schema
    as_object = key_schema is not None and key_schema.type is Type.STRING
    return _map(key_schema, schema.value_schema, as_object, value, options)


def _map(
    key_schema: Schema | None, value_schema: Schema | None, as_object: bool, items: Any, options: EncodingOptions
) -> Any:
    pairs = []
    key = None
    try:
        for key, item in items.items():
            pairs.append((to_json(key_schema, key, options), to_json(value_schema, item, options)))
    except DataError as error:
        raise in_field(error, str(key)) from None
    if as_object:
        return {"null" if key is None else key: item for key, item in pairs}
    return [list(pair) for pair in pairs]


def _struct(schema: Schema, value: Any, options: EncodingOptions) -> Any:
    if isinstance(value, Struct):
        if not value.matches_schema(schema):
            raise DataError(f"Mismatching schema: {schema_difference(value.schema, schema)}")
        row: Any = value.row
    elif isinstance(value, tuple) and len(value) == len(schema.fields):
        row = value
    else:
        raise _invalid(schema, value)
    tree = {}
    for field, item in zip(schema.fields, row, strict=True):
        try:
            tree[field.name] = to_json(field.schema, item, options)
        except DataError as error:
            raise in_field(error, field.name) from None
    return tree


def _invalid(schema: Schema, value: Any) -> DataError:
    type_name = "unknown schema" if schema is _SCHEMALESS else schema.type.name
    hint = STRUCT_NEEDED if schema.type is Type.STRUCT else ""
    return DataError(f"Invalid type for {type_name}: {type(value).__name__}{hint}")


_SCHEMALESS = Schema(Type.STRING)
_WRITERS: dict[Type, Callable[[Schema, Any, EncodingOptions], Any]] = {
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
    Type.MAP: _map_with_schema,
    Type.STRUCT: _struct,
}
