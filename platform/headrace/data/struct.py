"""The two forms of a value with a STRUCT schema: `Struct` for per-record code, and rows inside batches.

Inside a `Batch` a struct is a **row**: a tuple of the field values in schema order. Nested structs, including those in
arrays and maps, are rows as well. `to_rows` and `from_rows` convert whole lists between the two forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from headrace.data.errors import DataError, UnknownField
from headrace.data.logical import COUNT_RANGES, PYTHON_TYPES, to_count
from headrace.data.schema import Field, Schema, Type
from headrace.data.values import (
    contains_counts,
    mismatch_error,
    schema_difference,
    schemaless_value,
    schemaless_values,
    validate,
)

if TYPE_CHECKING:
    _Mapping = Mapping[str, Any]
else:

    class _Mapping:
        """The methods of `Mapping` without its metaclass. The metaclass makes isinstance several times slower."""

        __slots__ = ()
        get, keys, items, values = Mapping.get, Mapping.keys, Mapping.items, Mapping.values


class Struct(_Mapping):
    """A value of a STRUCT schema: a mapping of field names to values. `put` sets a field.

    The mapping contains every field of the schema. For a null field, the mapping returns the field's default, as Java's
    ``Struct.get`` does. For a name that is not a field, `get` returns None, as `dict.get` does. The same code can
    therefore handle records with and without a schema. A struct equals only other structs, never a dict. `repr` is
    Java's ``Struct{a=1,b=x}``, without null fields.
    """

    __slots__ = ("row", "schema")
    schema: Schema
    row: list[Any]
    """The fields' values in schema order, without defaults."""

    def __init__(self, schema: Schema, values: Mapping[str, Any] | Iterable[Any] | None = None) -> None:
        """Create a struct. `values` is a mapping of field names to values, or all values in the order of the fields.

        The values of a mapping are validated. The values of a sequence, such as a row, are not validated.
        """
        if schema.type is not Type.STRUCT:
            raise DataError(f"Not a struct schema: {schema!r}")
        self.schema = schema
        if values is None or isinstance(values, Mapping):
            self.row = [None] * len(schema.fields)
            for name, value in (values or {}).items():
                self.put(name, value)
        else:
            self.row = list(values)
            if len(self.row) != len(schema.fields):
                raise DataError(f"{schema!r} has {len(schema.fields)} fields, but {len(self.row)} values were given")

    def __getitem__(self, name: str) -> Any:
        """Return the field's value, or its default if the value is null. Raises UnknownField."""
        field = self._field(name)
        value = self.row[field.index]
        return field.schema.default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter([field.name for field in self.schema.fields])

    def __len__(self) -> int:
        return len(self.row)

    def __bool__(self) -> bool:
        return True  # a struct without fields is true, too; only null is false

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.schema.field(name) is not None

    def get_without_default(self, name: str) -> Any:
        """Return the field's value without applying the default. Raises UnknownField."""
        return self.row[self._field(name).index]

    def put(self, name: str, value: Any) -> Struct:
        """Set a field after validating the value; returns self. Raises DataError."""
        field = self._field(name)
        self.row[field.index] = validate(field.schema, value, f'field: "{name}"')
        return self

    def replace(self, /, **fields: Any) -> Struct:
        """Return a copy with some fields changed. Raises DataError."""
        copy = Struct(self.schema, self.row)
        for name, value in fields.items():
            copy.put(name, value)
        return copy

    def validate(self) -> None:
        """Validate every field. A null field that has a default is valid. Raises DataError, which names the field."""
        for field, value in zip(self.schema.fields, self.row, strict=True):
            if value is not None or not (field.schema.optional or field.schema.default is not None):
                validate(field.schema, value, f'field: "{field.name}"')

    def matches_schema(self, schema: Schema) -> bool:
        """Whether this struct is a valid value of `schema`.

        If `schema` has no default value, the struct's own schema must equal `schema`. If `schema` has a default value,
        only the fields of the two schemas must be equal. The reason is that this struct may be the default value. The
        default value was created before `schema`, with a schema that has no default.
        """
        own = self.schema
        return own is schema or own == schema or (schema.default is not None and own.fields == schema.fields)

    def _field(self, name: str) -> Field:
        field = self.schema.field(name)
        if field is None:
            raise UnknownField(f"{name} is not a valid field name")
        return field

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.row == other.row and self.schema == other.schema

    def __hash__(self) -> int:
        return hash((self.schema, repr(self.row)))

    def __repr__(self) -> str:
        from headrace.data.text import java_string

        return java_string(self)


Mapping.register(Struct)


def contains_struct(schema: Schema | None) -> bool:
    """Whether values of the schema are structs or may contain structs."""
    if schema is None or schema.type.is_primitive:
        return False
    return schema.type is Type.STRUCT or contains_struct(schema.key_schema) or contains_struct(schema.value_schema)


def to_rows(schema: Schema | None, values: list[Any]) -> list[Any]:
    """Convert the values of records to the form that batches contain: see `row_converter`."""
    if schema is None:
        return schemaless_values(values)
    convert = row_converter(schema)
    if convert is _identity:
        return values
    return [convert(value) for value in values]


def from_rows(schema: Schema | None, values: list[Any]) -> list[Any]:
    """Convert each row (the tuple of a struct) in the values to a `Struct` object.

    If the schema contains no struct, return the same list.
    """
    if not contains_struct(schema):
        return values
    convert = struct_converter(schema)
    return [convert(value) for value in values]


def _identity(value: Any) -> Any:
    return value


@lru_cache(maxsize=1024)
def row_converter(schema: Schema | None) -> Callable[[Any], Any]:
    """Return a function that converts values of this schema to the form that batches contain.

    `Struct` objects in a value become rows: tuples of the field values. Objects of Python's `datetime` module become
    values of the logical types. The function does not change a value that has this form already.
    """
    if schema is None:
        return schemaless_value
    if (name := schema.name or "") in COUNT_RANGES:
        return partial(to_count, name)
    if not contains_struct(schema) and not contains_counts(schema):
        return _identity
    if schema.type is not Type.STRUCT:
        return _container(schema, row_converter)
    converters = [
        (field.index, convert) for field in schema.fields if (convert := row_converter(field.schema)) is not _identity
    ]
    counts = [(index, PYTHON_TYPES[schema.fields[index].schema.name or ""]) for index in _count_fields(schema)]

    def to_row(value: Any) -> Any:
        if value is None:
            return None
        if value.__class__ is not Struct:
            raise mismatch_error(schema, value, "value")
        if not value.matches_schema(schema):
            raise DataError(f"Mismatching schema: {schema_difference(value.schema, schema)}")
        if len(converters) == len(counts):
            row = value.row
            for index, class_ in counts:
                if row[index].__class__ is not class_ and row[index] is not None:
                    break
            else:  # the usual case: no value needs a conversion
                return tuple(row)
        items = list(value.row)
        for index, convert in converters:
            items[index] = convert(items[index])
        return tuple(items)

    return to_row


def _count_fields(schema: Schema) -> list[int]:
    """Return the indexes of the fields that have the type Date, Time or Timestamp."""
    return [field.index for field in schema.fields if (field.schema.name or "") in COUNT_RANGES]


@lru_cache(maxsize=1024)
def struct_converter(schema: Schema | None) -> Callable[[Any], Any]:
    """Return a function that converts a value of this schema: each row in the value becomes a `Struct` object.

    A row is the tuple that represents a struct in a `Batch`. Record objects, for example `SourceRecord`, contain
    `Struct` objects instead of rows.
    """
    if schema is None or not contains_struct(schema):
        return _identity
    if schema.type is not Type.STRUCT:
        return _container(schema, struct_converter)
    converters = [
        (field.index, struct_converter(field.schema)) for field in schema.fields if contains_struct(field.schema)
    ]

    def to_struct(row: Any) -> Any:
        if row is None:
            return None
        value = Struct(schema, row)
        for index, convert in converters:
            value.row[index] = convert(value.row[index])
        return value

    return to_struct


def _container(schema: Schema, converter_for: Callable[[Schema | None], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    convert = converter_for(schema.value_schema)
    if schema.type is Type.ARRAY:
        return lambda items: None if items is None else [convert(item) for item in items]
    # Keys that are structs stay `Struct` objects: converting them to rows would have no advantage.
    return lambda items: None if items is None else {key: convert(item) for key, item in items.items()}
