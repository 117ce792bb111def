"""Schemas: immutable, hashable descriptions of values.

As in Kafka Connect, two schemas are equal if all their attributes are equal: type, optional, default, name, version,
doc, parameters, fields (including their order), key schema and value schema. The hash is computed only once, so schemas
are efficient dictionary keys; caches throughout the platform rely on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from headrace.data.errors import DataError, UnknownField


class Type(Enum):
    """The twelve types of Connect's schemas.

    The value of a member is the lower-case name that the ``spec`` of the Cast transform uses.
    """

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"

    # Members are singletons, so hashing by identity is correct, and 10 times as fast as Enum's hash of the name.
    __hash__ = object.__hash__

    @property
    def is_primitive(self) -> bool:
        """Whether the type is primitive: any type except ARRAY, MAP and STRUCT."""
        return self not in (Type.ARRAY, Type.MAP, Type.STRUCT)


INT_RANGES: Mapping[Type, tuple[int, int]] = {
    Type.INT8: (-(2**7), 2**7 - 1),
    Type.INT16: (-(2**15), 2**15 - 1),
    Type.INT32: (-(2**31), 2**31 - 1),
    Type.INT64: (-(2**63), 2**63 - 1),
}


class Field:
    """One field of a struct schema: its name, index and schema."""

    __slots__ = ("index", "name", "schema")
    name: str
    index: int
    schema: Schema

    def __init__(self, name: str, index: int, schema: Schema) -> None:
        self.name = name
        self.index = index
        self.schema = schema

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        return self.name == other.name and self.index == other.index and self.schema == other.schema

    def __hash__(self) -> int:
        return hash((self.name, self.index, self.schema))

    def __repr__(self) -> str:
        return f"Field{{name={self.name}, index={self.index}, schema={self.schema!r}}}"


class Schema:
    """The description of a value. Build schemas with the functions of this module; never modify a schema.

    `fields` is empty unless `type` is STRUCT. A MAP has `key_schema` and `value_schema`. An ARRAY has only
    `value_schema`.
    """

    __slots__ = (
        "_by_name",
        "_hash",
        "default",
        "doc",
        "fields",
        "key_schema",
        "name",
        "optional",
        "parameters",
        "type",
        "value_schema",
        "version",
    )
    type: Type
    optional: bool
    default: Any
    name: str | None
    version: int | None
    doc: str | None
    parameters: Mapping[str, str] | None
    fields: tuple[Field, ...]
    key_schema: Schema | None
    value_schema: Schema | None

    def __init__(
        self,
        type: Type,
        *,
        optional: bool = False,
        default: Any = None,
        name: str | None = None,
        version: int | None = None,
        doc: str | None = None,
        parameters: Mapping[str, str] | None = None,
        fields: Iterable[Field | tuple[str, Schema]] = (),
        key_schema: Schema | None = None,
        value_schema: Schema | None = None,
    ) -> None:
        self.type = type
        self.optional = optional
        self.default = default
        self.name = name
        self.version = version
        self.doc = doc
        self.parameters = dict(parameters) if parameters else None
        self.fields = tuple(_with_indexes(fields))
        self.key_schema = key_schema
        self.value_schema = value_schema
        self._by_name = {field.name: field for field in self.fields}
        self._hash: int | None = None
        if len(self._by_name) != len(self.fields):
            names = [field.name for field in self.fields]
            repeated = next(name for name in names if names.count(name) > 1)
            raise DataError(f"Cannot create field because of field name duplication: {repeated}")
        if default is not None:
            from headrace.data.values import validate

            self.default = validate(self, default, "default value")

    def field(self, name: str) -> Field | None:
        """Return the field with that name, or None."""
        return self._by_name.get(name)

    def index_of(self, name: str) -> int:
        """Return the index of the field with that name. Raises UnknownField if there is no such field."""
        field = self._by_name.get(name)
        if field is None:
            raise UnknownField(f"{name} is not a valid field name")
        return field.index

    def replace(self, **changes: Any) -> Schema:
        """Return a copy with some attributes changed. `changes` are keyword arguments of the constructor."""
        attributes: dict[str, Any] = {key: getattr(self, key) for key in _ATTRIBUTES}
        return Schema(**{**attributes, **changes})

    def _compared_attributes(self) -> tuple[Any, ...]:
        return (self.type, self.optional, self.name, self.version, self.doc, self.key_schema, self.value_schema)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Schema):
            return NotImplemented
        return (
            hash(self) == hash(other)
            and self._compared_attributes() == other._compared_attributes()
            and self.default == other.default
            and type(self.default) is type(other.default)
            and self.parameters == other.parameters
            and self.fields == other.fields
        )

    def __hash__(self) -> int:
        if self._hash is None:
            # Enum members hash by identity, which differs between processes: unpickled copies compute their own hash.
            parameters = frozenset(self.parameters.items()) if self.parameters else None
            self._hash = hash((*self._compared_attributes(), repr(self.default), parameters, self.fields))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, ({key: getattr(self, key) for key in _ATTRIBUTES},))

    def __repr__(self) -> str:
        return f"Schema{{{self.name}:{self.type.name}}}" if self.name else f"Schema{{{self.type.name}}}"


_ATTRIBUTES = (
    "type",
    "optional",
    "default",
    "name",
    "version",
    "doc",
    "parameters",
    "fields",
    "key_schema",
    "value_schema",
)


def _rebuild(attributes: dict[str, Any]) -> Schema:
    return Schema(**attributes)


def _with_indexes(fields: Iterable[Field | tuple[str, Schema]]) -> Iterable[Field]:
    for index, field in enumerate(fields):
        name, schema = (field.name, field.schema) if isinstance(field, Field) else field
        if not name:
            raise DataError("Every field of a struct schema must have a name")
        if isinstance(field, Field) and field.index == index:
            yield field
        else:
            yield Field(name, index, schema)


def struct(fields: Iterable[Field | tuple[str, Schema]], **attributes: Any) -> Schema:
    """Build a STRUCT schema: ``struct([("id", INT64_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)], name="user")``."""
    return Schema(Type.STRUCT, fields=fields, **attributes)


def array(value_schema: Schema, **attributes: Any) -> Schema:
    """Build an ARRAY schema. `value_schema` is the schema of the elements."""
    return Schema(Type.ARRAY, value_schema=value_schema, **attributes)


def map_of(key_schema: Schema, value_schema: Schema, **attributes: Any) -> Schema:
    """Build a MAP schema with these schemas of keys and values."""
    return Schema(Type.MAP, key_schema=key_schema, value_schema=value_schema, **attributes)


INT8_SCHEMA = Schema(Type.INT8)
INT16_SCHEMA = Schema(Type.INT16)
INT32_SCHEMA = Schema(Type.INT32)
INT64_SCHEMA = Schema(Type.INT64)
FLOAT32_SCHEMA = Schema(Type.FLOAT32)
FLOAT64_SCHEMA = Schema(Type.FLOAT64)
BOOLEAN_SCHEMA = Schema(Type.BOOLEAN)
STRING_SCHEMA = Schema(Type.STRING)
BYTES_SCHEMA = Schema(Type.BYTES)
OPTIONAL_INT8_SCHEMA = Schema(Type.INT8, optional=True)
OPTIONAL_INT16_SCHEMA = Schema(Type.INT16, optional=True)
OPTIONAL_INT32_SCHEMA = Schema(Type.INT32, optional=True)
OPTIONAL_INT64_SCHEMA = Schema(Type.INT64, optional=True)
OPTIONAL_FLOAT32_SCHEMA = Schema(Type.FLOAT32, optional=True)
OPTIONAL_FLOAT64_SCHEMA = Schema(Type.FLOAT64, optional=True)
OPTIONAL_BOOLEAN_SCHEMA = Schema(Type.BOOLEAN, optional=True)
OPTIONAL_STRING_SCHEMA = Schema(Type.STRING, optional=True)
OPTIONAL_BYTES_SCHEMA = Schema(Type.BYTES, optional=True)
