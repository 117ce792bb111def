"""Determines the schema of a value that the Python transform's code returns as plain Python objects.

If the original value has no schema, the new value has no schema either. Otherwise, fields of the original struct keep
their schemas, and the schemas of new fields are derived from the values of these fields. This module does no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.api.errors import DataError
from headrace.data.java import Float32
from headrace.data.logical import (
    OPTIONAL_DATE_SCHEMA,
    OPTIONAL_TIME_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    decimal_scale,
    decimal_schema,
)
from headrace.data.schema import Schema, Type, struct
from headrace.data.struct import Struct

_SCALARS: dict[type, Schema] = {
    bool: Schema(Type.BOOLEAN, optional=True),
    int: Schema(Type.INT64, optional=True),
    Float32: Schema(Type.FLOAT32, optional=True),
    float: Schema(Type.FLOAT64, optional=True),
    str: Schema(Type.STRING, optional=True),
    bytes: Schema(Type.BYTES, optional=True),
    dt.date: OPTIONAL_DATE_SCHEMA,
    dt.time: OPTIONAL_TIME_SCHEMA,
    dt.datetime: OPTIONAL_TIMESTAMP_SCHEMA,
    Date: OPTIONAL_DATE_SCHEMA,
    Time: OPTIONAL_TIME_SCHEMA,
    Timestamp: OPTIONAL_TIMESTAMP_SCHEMA,
}
_EXPECTED = ", ".join(type_.__name__ for type_ in (*_SCALARS, Decimal))
_CACHED_MAX = 1000


class ResultSchemas:
    """Derives schemas, and caches them by the original schema and the names and types of the new fields."""

    def __init__(self) -> None:
        self._structs: dict[Any, Schema] = {}

    def value(self, schema: Schema | None, original: Any, result: Any) -> tuple[Schema | None, Any]:
        """Return the schema and the record value for a result of the user's code. Raises DataError.

        `schema` and `original` are the record's schema and value before the transform.
        """
        if result is original:
            return schema, result
        if isinstance(result, Struct):
            return result.schema, result
        if schema is None:
            return None, result
        if isinstance(result, Mapping):
            made = self._struct(schema, result)
            return made, Struct(made, result)
        found = _SCALARS.get(type(result), _ANY)
        if schema.type is not Type.STRUCT and found.type is schema.type and found.name in (None, schema.name):
            return schema, result
        return _scalar(type(result), result, "the result"), result

    def _struct(self, schema: Schema, result: Mapping[str, Any]) -> Schema:
        shape = (schema, tuple((name, _kind(value)) for name, value in result.items()))
        found = self._structs.get(shape)
        if found is None:
            if len(self._structs) >= _CACHED_MAX:
                self._structs.clear()
            found = self._structs[shape] = _derived(schema, result)
        return found


_ANY = Schema(Type.MAP, key_schema=Schema(Type.STRING), value_schema=Schema(Type.STRING))


def _kind(value: Any) -> Any:
    return (Decimal, decimal_scale(value)) if isinstance(value, Decimal) else type(value)


def _derived(schema: Schema, result: Mapping[str, Any]) -> Schema:
    """Return the schema of a struct with the fields of `result`. Fields of `schema` keep their schemas."""
    fields = schema.fields if schema.type is Type.STRUCT else ()
    known = {field.name: field.schema for field in fields}
    if list(known) == list(result):
        return schema
    return struct(
        [
            (name, known.get(name) or _scalar(type(value), value, f"the new field {name}"))
            for name, value in result.items()
        ],
        name=schema.name if fields else None,
        optional=schema.optional,
    )


def _scalar(type_: type, value: Any, what: str) -> Schema:
    if isinstance(value, Decimal):
        return decimal_schema(decimal_scale(value), optional=True)
    found = _SCALARS.get(type_)
    if found is None:
        reason = "is null" if value is None else f"has the type {type_.__name__}"
        raise DataError(
            f"{what} {reason}, and no schema can be derived (expected: {_EXPECTED}): "
            "return record.replace(value=..., value_schema=...)"
        )
    return found
