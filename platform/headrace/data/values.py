"""Validation of values against schemas, with Connect's error messages."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

from headrace.data.errors import DataError
from headrace.data.java import Float32
from headrace.data.logical import COUNT_RANGES, PYTHON_TYPES, TEMPORAL_TYPES, checked_count, from_python_date, to_count
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

_DATELESS = frozenset({str, int, float, bool, bytes, type(None)})
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
        if isinstance(value, TEMPORAL_TYPES):
            return None  # as in Java, a date without a schema has no Connect type
        found = next((type_ for class_, type_ in _INFERRED_TYPES.items() if isinstance(value, class_)), None)
    return found


def validate(schema: Schema, value: Any, location: str = "value") -> Any:
    """Validate one value, and return it in the form that records contain. A struct must be a `Struct`.

    For a Date, Time or Timestamp schema, an object of Python's `datetime` module and a plain int become a `Date`,
    `Time` or `Timestamp`, also in arrays and maps. For an integer schema, these become a plain int. Any other value is
    returned unchanged. Raises DataError. The message contains `location`, for example ``field: "id"``.
    """
    if value is None:
        if not schema.optional:
            raise DataError(
                f"Invalid value: null used for required {location}, schema type: {schema.type.name}",
            )
        return None
    if schema.type is Type.STRUCT:
        _validate_struct(schema, value, location)
        return value
    if schema.name in COUNT_RANGES:
        return _validated_count(schema, value, location)
    _validate_class(schema, value, location)
    if isinstance(value, TEMPORAL_TYPES):
        return int(value)
    if schema.type is Type.ARRAY:
        element = _require_schema(schema.value_schema, f"element of array {location}")
        items = [validate(element, item, f"element of array {location}") for item in value]
        return items if contains_counts(element) else value
    if schema.type is Type.MAP:
        key_schema = _require_schema(schema.key_schema, f"key of map {location}")
        value_schema = _require_schema(schema.value_schema, f"value of map {location}")
        entries = {
            validate(key_schema, key, f"key of map {location}"): validate(
                value_schema, item, f"value of map {location}"
            )
            for key, item in value.items()
        }
        return entries if contains_counts(schema) else value
    return value


@lru_cache(maxsize=1024)
def contains_counts(schema: Schema | None) -> bool:
    """Whether values of the schema are or may contain values of the types Date, Time and Timestamp.

    Fields of structs are not considered.
    """
    if schema is None:
        return False
    return schema.name in COUNT_RANGES or contains_counts(schema.key_schema) or contains_counts(schema.value_schema)


def schemaless_value(value: Any) -> Any:
    """Replace the objects of Python's `datetime` module in a value without a schema. The value is not changed."""
    if isinstance(value, dict):
        if _DATELESS.issuperset(map(type, value.values())):
            return value
        return {schemaless_value(key): schemaless_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return value if _DATELESS.issuperset(map(type, value)) else [schemaless_value(item) for item in value]
    return from_python_date(value)


def schemaless_values(values: list[Any]) -> list[Any]:
    """Return the result of `schemaless_value` for each value."""
    return [
        value
        if type(value) in _DATELESS or (type(value) is dict and _DATELESS.issuperset(map(type, value.values())))
        else schemaless_value(value)
        for value in values
    ]


def _validated_count(schema: Schema, value: Any, location: str) -> Any:
    name = schema.name or ""
    low, high = COUNT_RANGES[name]
    if value.__class__ is PYTHON_TYPES[name] and low <= cast("int", value) <= high:
        return value
    count: Any = to_count(name, value)
    if not isinstance(count, TEMPORAL_TYPES) or not isinstance(count, PYTHON_TYPES[name]):
        raise mismatch_error(schema, value, location)
    try:
        return checked_count(name, count)
    except DataError as error:
        raise DataError(f"{error} for {location}") from None


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
        if not isinstance(value, logical):
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
