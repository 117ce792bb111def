"""Maps SQL types to Connect schemas, and converts values whose Python type differs from Connect's.

The mapping is that of Confluent's JDBC connector. Integers are mapped by width, NUMERIC to Decimal
unless `numeric.mapping` is set, and dates and times to logical types. All textual types, including
JSON, UUID, XML and enumerations, are mapped to STRING. `unsupported.columns` determines how columns
of other types, such as arrays and intervals, are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from sqlalchemy.types import (
    DECIMAL,
    NUMERIC,
    REAL,
    UUID,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Time,
    TypeEngine,
)
from sqlalchemy.types import JSON as SqlJson

from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    INT_RANGES,
    STRING_SCHEMA,
    Schema,
)

Converter = Callable[[Any], Any]
ColumnConverter = Callable[[Sequence[Any]], "list[Any] | None"]

_PRECISION_PARAMETER = "connect.decimal.precision"
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])


@dataclass(frozen=True, slots=True)
class JdbcColumn:
    """A column of a table or query.

    `schema` is the schema of the record's field. `convert` converts the driver's value to the field's value. `convert`
    is None if both values are equal. `convert_column` converts a sequence of such values faster, or returns None if it
    cannot convert one of them. `binary` is true if the driver returns the same value in binary format and in text
    format. The dialect can then use the faster binary format. `is_unsupported` is true if the SQL type has no Connect
    type. The column is then read as text. `is_key` is true if the column belongs to the primary key. `fraction_digits`
    is the number of fractional-second digits that a timestamp column stores, or 0 if this number is unknown.
    `is_set_by_database` is true if the database is known to set the column to the current time. `declared` is the SQL
    type for error messages. `describe` returns the text of the driver's value for error messages.

    `is_declared_not_null` is true if the column is declared NOT NULL but can still contain NULL. `nullable` is then
    also true. For example, PostgreSQL does not enforce NOT NULL in foreign tables.
    """

    name: str
    schema: Schema
    convert: Converter | None = None
    convert_column: ColumnConverter | None = field(default=None, compare=False, kw_only=True)
    is_timestamp: bool = False
    is_zoned: bool = False
    is_autoincrement: bool = False
    nullable: bool = True
    binary: bool = False
    is_unsupported: bool = False
    is_key: bool = False
    fraction_digits: int = 0
    is_set_by_database: bool = False
    is_declared_not_null: bool = False
    declared: str = field(default="", compare=False)
    describe: Callable[[Any], str] | None = field(default=None, compare=False)

    @property
    def identity_type(self) -> type | None:
        """`convert` itself if `convert` is a Python type such as `float`, otherwise None.

        A Python type returns its own values unchanged. For example, `float(0.5)` is 0.5.
        """
        return self.convert if isinstance(self.convert, type) else None


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The values of the configuration keys that control the mapping of types."""

    numeric_mapping: str = "none"
    unconstrained_scale: int = 20
    timestamp_granularity: str = "connect_logical"


def base_schema(type_: TypeEngine[Any], options: TypeOptions) -> Schema | None:
    """Return the required (not optional) schema for an SQL type, or None if no Connect type represents it."""
    if isinstance(type_, (NUMERIC, DECIMAL)) or (isinstance(type_, Numeric) and not isinstance(type_, Float)):
        return _numeric(type_, options, "none" if isinstance(type_, DECIMAL) else options.numeric_mapping)
    if isinstance(type_, DateTime):
        return timestamp_schema(options.timestamp_granularity)
    if isinstance(type_, Time) and type_.timezone:
        return None  # Connect's Time has no time zone
    for kinds, schema in _SIMPLE:
        if isinstance(type_, kinds):
            return schema
    return None


_SIMPLE: tuple[tuple[tuple[type[TypeEngine[Any]], ...], Schema], ...] = (
    ((Boolean,), BOOLEAN_SCHEMA),
    ((BigInteger,), INT64_SCHEMA),
    ((SmallInteger,), INT16_SCHEMA),
    ((Integer,), INT32_SCHEMA),
    ((REAL,), FLOAT32_SCHEMA),
    ((Double, Float), FLOAT64_SCHEMA),
    ((Date,), DATE_SCHEMA),
    ((Time,), TIME_SCHEMA),
    ((LargeBinary,), BYTES_SCHEMA),
    ((String, Enum, UUID, SqlJson, Interval), STRING_SCHEMA),
)


def _numeric(type_: Numeric[Any], options: TypeOptions, mapping: str) -> Schema:
    precision, scale = type_.precision, type_.scale or 0
    if precision is None:
        eager = mapping == "best_fit_eager_double"
        return FLOAT64_SCHEMA if eager else decimal_schema(options.unconstrained_scale)
    if mapping == "precision_only" and scale == 0 and precision <= 18:
        return _integer(precision)
    if mapping.startswith("best_fit") and scale < 1 and precision <= 18:
        return _integer(precision)
    if (mapping == "best_fit" and scale > 0 and precision <= 18) or (mapping == "best_fit_eager_double" and scale > 0):
        return FLOAT64_SCHEMA
    schema = decimal_schema(scale)
    return schema.replace(parameters={**(schema.parameters or {}), _PRECISION_PARAMETER: str(precision)})


def _integer(precision: int) -> Schema:
    for digits, schema in ((9, INT64_SCHEMA), (4, INT32_SCHEMA), (2, INT16_SCHEMA)):
        if precision > digits:
            return schema
    return INT8_SCHEMA


def to_decimal(scale: int) -> Converter:
    """Return a function that converts a number of any Python type to a Decimal with the given scale.

    The function raises ValueError if digits would be lost, and for NaN and infinities.
    """
    exponent = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        try:
            exact = value if type(value) is Decimal else Decimal(str(value))
            if exact.is_finite():
                return exact.quantize(exponent, context=_EXACT)
        except DecimalException:
            pass
        raise ValueError(f"{value} does not fit a decimal with {scale} decimal places")

    return convert


def may_exceed_schema(column: JdbcColumn) -> bool:
    """Return whether the column's `convert` may return an integer that is too large for the field's type."""
    schema = column.schema
    is_number = schema.name is None and schema.type in INT_RANGES and not column.is_timestamp
    return column.convert is not None and is_number


def to_integer(value: Any) -> int:
    """Convert a number of any Python type to an integer. Raises ValueError if digits would be lost."""
    integer = int(value)
    if integer != value:
        raise ValueError(f"{value} is not an integer")
    return integer


def to_integer_of(schema: Schema) -> Converter:
    """Return a function like `to_integer` that also raises ValueError for a number that is too large for `schema`."""
    low, high = INT_RANGES[schema.type]

    def convert(value: Any) -> int:
        integer = to_integer(value)
        if not low <= integer <= high:
            raise ValueError(f"{value} is too large for {schema.type.name}")
        return integer

    return convert


def timestamp_schema(granularity: str) -> Schema:
    """Return the schema of timestamp fields for a `timestamp.granularity`."""
    if granularity == "connect_logical":
        return TIMESTAMP_SCHEMA
    return INT64_SCHEMA if granularity.endswith("_long") else STRING_SCHEMA


def chain(first: Converter | None, second: Converter | None) -> Converter | None:
    """Return a function that applies `first` and then `second`, or None if both are None."""
    if first is None or second is None:
        return first or second
    before, after = first, second
    return lambda value: after(before(value))
