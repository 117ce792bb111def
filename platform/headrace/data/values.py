"""Validation of values against schemas, with Connect's error messages."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, cast

from headrace.data.errors import DataError
from headrace.data.java import Float32
from headrace.data.logical import PYTHON_TYPES, TIMESTAMP_NAME
from headrace.data.schema import INT_RANGES, Schema, Type

_PYTHON_CLASSES: dict[Type, tuple[type, ...]] = {
    Type.INT8: (int,),
    Type.INT16: (int,),
    Type.INT32: (int,),
    Type.INT64: (int,),
    Type.FLOAT32: (float,),
    Type.FLOAT64: (float,),
    Type.BOOLEAN: (bool,),
    Type.STRING: (str,),
    Type.BYTES: (bytes, bytearray, memoryview),
    Type.ARRAY: (list,),
    Type.MAP: (dict,),
}

_NAMES_MAX = 5
STRUCT_NEEDED = "; create a Struct with this schema: Struct(schema, {...})"

_INFERRED_TYPES: dict[type, Type] = {
    bool: Type.BOOLEAN,
    int: Type.INT64,
    Float32: Type.FLOAT32,
    float: Type.FLOAT64,
    str: Type.STRING,
    bytes: Type.BYTES,
    bytearray: Type.BYTES,
    memoryview: Type.BYTES,
    list: Type.ARRAY,
    dict: Type.MAP,
}


def infer_type(value: Any) -> Type | None:
    """Infer the Connect type of a schemaless value. An int has the type INT64, and a float has the type FLOAT64.

    A `Float32` has the type FLOAT32.

    Return None if the value has no Connect type.
    """
    found = _INFERRED_TYPES.get(type(value))
    if found is None:
        from headrace.data.struct import Struct

        if isinstance(value, Struct):
            return Type.STRUCT
        found = next((type_ for class_, type_ in _INFERRED_TYPES.items() if isinstance(value, class_)), None)
    return found


def validate(schema: Schema, value: Any, location: str = "value") -> None:
    """Validate one value. A struct must be a `Struct`.

    Raises DataError. The message contains `location`, for example ``field: "id"``.
    """
    if value is None:
        if not schema.optional:
            raise DataError(
                f"Invalid value: null used for required {location}, schema type: {schema.type.name}",
            )
        return
    if schema.type is Type.STRUCT:
        _validate_struct(schema, value, location)
        return
    _validate_class(schema, value, location)
    if schema.type is Type.ARRAY:
        element = _require_schema(schema.value_schema, f"element of array {location}")
        for item in value:
            validate(element, item, f"element of array {location}")
    elif schema.type is Type.MAP:
        key_schema = _require_schema(schema.key_schema, f"key of map {location}")
        value_schema = _require_schema(schema.value_schema, f"value of map {location}")
        for key, item in value.items():
            validate(key_schema, key, f"key of map {location}")
            validate(value_schema, item, f"value of map {location}")


def _validate_struct(schema: Schema, value: Any, location: str) -> None:
    from headrace.data.struct import Struct

    if not isinstance(value, Struct):
        raise mismatch_error(schema, value, location)
    if not value.matches_schema(schema):
        raise DataError(f"Struct schemas do not match for {location}: {schema_difference(value.schema, schema)}")
    value.validate()


def schema_difference(found: Schema, expected: Schema) -> str:
    """Return a text that says how the schema of a struct, `found`, differs from the expected schema, and what to do."""
    own, wanted = ({field.name: field.schema for field in each.fields} for each in (found, expected))
    changed = [name for name, schema in own.items() if name in wanted and wanted[name] != schema]
    differences = [
        f"{text}: {', '.join(names[:_NAMES_MAX])}"
        for text, names in (
            ("missing fields", [name for name in wanted if name not in own]),
            ("additional fields", [name for name in own if name not in wanted]),
            ("fields with other schemas", changed),
        )
        if names
    ]
    what = "; ".join(differences) or "another name, version, default or order of fields"
    return (
        f"the schema of the struct differs from the schema that the record or field has ({what}); create the struct "
        "with the schema of the record or field, or set the record's schema to the schema of the struct"
    )


def _validate_class(schema: Schema, value: Any, location: str) -> None:
    logical = PYTHON_TYPES.get(schema.name or "")
    if logical is not None:
        if not isinstance(value, logical) or (isinstance(value, dt.datetime) and schema.name != TIMESTAMP_NAME):
            raise mismatch_error(schema, value, location)
        if isinstance(value, Decimal) and not value.is_finite():
            raise DataError(f"Invalid value {value} for {location}: a Decimal must be a finite number")
        return
    if not isinstance(value, _PYTHON_CLASSES[schema.type]) or (
        isinstance(value, bool) and schema.type is not Type.BOOLEAN
    ):
        raise mismatch_error(schema, value, location)
    bounds = INT_RANGES.get(schema.type)
    if bounds is not None and not bounds[0] <= cast("int", value) <= bounds[1]:
        raise DataError(f"Value {value} is out of range for type {schema.type.name} for {location}")


def _require_schema(schema: Schema | None, location: str) -> Schema:
    if schema is None:
        raise DataError(f"No schema defined for {location}")
    return schema


def mismatch_error(schema: Schema, value: Any, location: str) -> DataError:
    """Return the error for a value whose Python type does not match the schema."""
    named = f' "{schema.name}"' if schema.name else ""
    class_ = type(value).__name__
    hint = STRUCT_NEEDED if schema.type is Type.STRUCT else ""
    return DataError(f"Invalid object for schema{named} with type {schema.type.name}: {class_} for {location}{hint}")
