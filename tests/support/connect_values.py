"""The form of schemas and values in which tests exchange them with ConnectOracle.java.

The form consists of JSON's types. It is exact: it distinguishes all types of Connect, and it contains the bits of
floating point numbers.

- A schema is an object: ``type``, ``optional``, ``name``, ``version``, ``doc``, ``parameters``, ``default``, ``keys``,
  ``values`` and ``fields`` (pairs of a name and a schema). Attributes that are not set are missing.
- A value is null or an array: the type, and the content. The types are those of schemas, and ``decimal`` (the unscaled
  number as a string, and the scale) and ``date`` (``java.util.Date``, the milliseconds since 1970). A struct contains
  the values of its fields, without defaults. A map contains pairs.

This module converts the form to headrace's schemas and values, and back. Without a schema, headrace has a single type
of integers, so `int64` then represents all types of integers. The entries of maps are sorted.
"""

from __future__ import annotations

import json
import struct as binary
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.data.java import Float32
from headrace.data.logical import (
    DATE_NAME,
    MILLIS_PER_DAY,
    TIME_NAME,
    Date,
    Time,
    Timestamp,
    decimal_scale,
    from_unscaled,
    unscaled,
)
from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct

_INTEGERS = ("int8", "int16", "int32", "int64")


def float_bits(value: float) -> int:
    """Return Java's ``Float.floatToIntBits``."""
    return int(binary.unpack(">i", binary.pack(">f", value))[0]) if value == value else 0x7FC00000


def double_bits(value: float) -> int:
    """Return Java's ``Double.doubleToLongBits``."""
    return int(binary.unpack(">q", binary.pack(">d", value))[0]) if value == value else 0x7FF8000000000000


def to_schema(form: Mapping[str, Any] | None) -> Schema | None:
    """Convert the form of a schema to headrace's schema."""
    if form is None:
        return None
    made = Schema(
        Type(form["type"]),
        optional=form.get("optional", False),
        name=form.get("name"),
        version=form.get("version"),
        doc=form.get("doc"),
        parameters=form.get("parameters"),
        fields=[(name, _schema(field)) for name, field in form.get("fields", ())],
        key_schema=to_schema(form.get("keys")),
        value_schema=to_schema(form.get("values")),
    )
    return made.replace(default=to_value(made, form["default"])) if "default" in form else made


def _schema(form: Mapping[str, Any]) -> Schema:
    made = to_schema(form)
    assert made is not None
    return made


def from_schema(schema: Schema | None) -> dict[str, Any] | None:
    """Convert headrace's schema to its form."""
    if schema is None:
        return None
    form: dict[str, Any] = {"type": schema.type.value}
    if schema.optional:
        form["optional"] = True
    for name in ("name", "version", "doc"):
        if getattr(schema, name) is not None:
            form[name] = getattr(schema, name)
    if schema.parameters:
        form["parameters"] = dict(schema.parameters)
    if schema.type is Type.MAP:
        form["keys"] = from_schema(schema.key_schema)
    if schema.type in (Type.ARRAY, Type.MAP):
        form["values"] = from_schema(schema.value_schema)
    if schema.type is Type.STRUCT:
        form["fields"] = [[field.name, from_schema(field.schema)] for field in schema.fields]
    if schema.default is not None:
        form["default"] = from_value(schema, schema.default)
    return form


def to_value(schema: Schema | None, form: Any) -> Any:
    """Convert the form of a value to headrace's value. Structs are `Struct` objects."""
    if form is None:
        return None
    tag, content = form[0], form[1]
    if tag == "float32":
        number = binary.unpack(">f", binary.pack(">i", content))[0]
        return Float32(number) if schema is None else number
    if tag == "float64":
        return binary.unpack(">d", binary.pack(">q", content))[0]
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "decimal":
        return from_unscaled(int(content), form[2])
    if tag == "date":
        return _to_date(schema.name if schema is not None else None, content)
    if tag == "array":
        return [to_value(schema and schema.value_schema, item) for item in content]
    if tag == "map":
        return {
            to_value(schema and schema.key_schema, key): to_value(schema and schema.value_schema, item)
            for key, item in content
        }
    if tag == "struct":
        assert schema is not None
        row = [to_value(field.schema, item) for field, item in zip(schema.fields, content, strict=True)]
        return Struct(schema, row)
    return content


def _to_date(name: str | None, millis: int) -> Any:
    """Return headrace's value for a ``java.util.Date``; `name` is the name of its schema."""
    if name == DATE_NAME:
        return Date(millis // MILLIS_PER_DAY)
    return Time(millis) if name == TIME_NAME else Timestamp(millis)


def _from_date(value: Any) -> int | None:
    """Return the milliseconds of the ``java.util.Date`` for headrace's value, or None if it is not a date or time."""
    if type(value) is Date:
        return value * MILLIS_PER_DAY
    return +value if type(value) in (Time, Timestamp) else None


def from_value(schema: Schema | None, value: Any) -> Any:
    """Convert headrace's value to its form. The type in the form is that of the value, even if the schema differs."""
    if value is None:
        return None
    if isinstance(value, bool):
        return ["boolean", value]
    if isinstance(value, str):
        return ["string", value]
    millis = _from_date(value)
    if millis is not None:
        return ["date", millis]
    if isinstance(value, int):
        return [schema.type.value if schema is not None and schema.type.value in _INTEGERS else "int64", value]
    if isinstance(value, float):
        if isinstance(value, Float32) or (schema is not None and schema.type is Type.FLOAT32):
            return ["float32", float_bits(value)]
        return ["float64", double_bits(value)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, Decimal):
        scale = decimal_scale(value)
        return ["decimal", str(unscaled(value, scale)), scale]
    if isinstance(value, list):
        return ["array", [from_value(schema and schema.value_schema, item) for item in value]]
    if isinstance(value, dict):
        pairs = [
            [from_value(schema and schema.key_schema, key), from_value(schema and schema.value_schema, item)]
            for key, item in value.items()
        ]
        return ["map", _sorted(pairs)]
    if isinstance(value, Struct):
        return [
            "struct",
            [from_value(field.schema, item) for field, item in zip(value.schema.fields, value.row, strict=True)],
        ]
    return [type(value).__name__, str(value)]


def _sorted(pairs: list[Any]) -> list[Any]:
    """Sort the entries of a map. The keys of the sort contain all levels below, so one entry needs no such key."""
    return sorted(pairs, key=json.dumps) if len(pairs) > 1 else pairs


def normalized(schema: Mapping[str, Any] | None, form: Any) -> Any:
    """Return a value of Java in the form that `from_value` returns: with `int64` for integers without a schema."""
    if form is None:
        return None
    tag, content = form[0], form[1]
    if tag in _INTEGERS and schema is None:
        return ["int64", content]
    keys, values = (schema.get("keys"), schema.get("values")) if schema is not None else (None, None)
    if tag == "array":
        return [tag, [normalized(values, item) for item in content]]
    if tag == "struct":
        fields = schema["fields"] if schema is not None else [[None, {}]] * len(content)
        return [tag, [normalized(field, item) for (_, field), item in zip(fields, content, strict=True)]]
    if tag == "map":
        pairs = [[normalized(keys, key), normalized(values, item)] for key, item in content]
        return ["map", _sorted(pairs)]
    return form
