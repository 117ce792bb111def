"""TimestampConverter: convert timestamps between Unix time, strings and Connect's Date, Time and Timestamp."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import NoneType
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError, DataError
from headrace.data.batch import Batch
from headrace.data.columns import ColumnarValues, Columns
from headrace.data.java_dates import SimpleDateFormat, pattern_warnings
from headrace.data.logical import (
    DATE_NAME,
    DATE_SCHEMA,
    MILLIS_PER_DAY,
    TIME_NAME,
    TIME_SCHEMA,
    TIMESTAMP_NAME,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    checked_count,
)
from headrace.data.schema import INT64_SCHEMA, INT_RANGES, STRING_SCHEMA, Schema, Type
from headrace.data.struct import struct_converter, to_rows
from headrace_transforms.columnar import field_column, filled_with_defaults, map_column, without_nulls
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    copy_basics,
    defaults_filler,
    replace_null_key,
    require_maps,
    require_struct_schema,
)
from headrace_transforms.record_errors import message_of, place_of, record_error, schema_type_name, type_name

_PURPOSE = "converting timestamp formats"
_SCHEMAS = {
    "string": STRING_SCHEMA,
    "unix": INT64_SCHEMA,
    "Date": DATE_SCHEMA,
    "Time": TIME_SCHEMA,
    "Timestamp": TIMESTAMP_SCHEMA,
}
_SOURCES = {name: name for name in ("Date", "Time", "Timestamp")}
_SOURCE_CLASSES: dict[str, type] = {"string": str, "unix": int, "Date": Date, "Time": Time, "Timestamp": Timestamp}
_CLASS_SOURCES = {class_: source for source, class_ in _SOURCE_CLASSES.items()}
_CONVERSION_ERRORS = (DataError, TypeError, ValueError, AttributeError, ArithmeticError)
_SAMPLE = 128
"""If at most half of this number of values are different, then the values repeat."""
_ANY_SOURCE = "STRING, INT64, Date, Time or Timestamp"


class TimestampConverterConfig(Config):
    """Configuration of TimestampConverter."""

    field: str = key(
        "field",
        default="",
        doc="The field to convert. Default: the whole key or value.",
        importance=Importance.HIGH,
    )
    target_type: str = key(
        "target.type",
        one_of=tuple(_SCHEMAS),
        doc="The target type: string, unix, Date, Time or Timestamp.",
        importance=Importance.HIGH,
    )
    format: str = key(
        "format",
        default="",
        doc="SimpleDateFormat pattern of string timestamps. Required if the source or target is a string.",
    )
    unix_precision: str = key(
        "unix.precision",
        default="milliseconds",
        one_of=("nanoseconds", "microseconds", "milliseconds", "seconds"),
        doc="The unit of Unix timestamps, both as source and as target.",
        importance=Importance.LOW,
    )
    replace_null_with_default: bool = replace_null_key()

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Check that the format is valid, and that it is set if the target type is string."""
        pattern = values.get("format", "")
        if values.get("target.type") == "string" and not pattern.strip():
            reason = "TimestampConverter requires format option to be specified when using string timestamps"
            yield ConfigError("format", pattern, reason)
        try:
            SimpleDateFormat(pattern)
        except ValueError as error:
            reason = "TimestampConverter requires a SimpleDateFormat-compatible pattern for string timestamps"
            yield ConfigError("format", pattern, f"{reason}: {error}")

    def value_warnings(self, task_class: type[Any]) -> dict[str, str]:
        """Warn about a pattern that shifts the time."""
        return pattern_warnings({"format": self.format})


class TimestampConverter(KeyOrValue[TimestampConverterConfig]):
    """Converts timestamps to another type, in UTC.

    A null key or value stays null. A null field becomes the field's default, if it has one
    (`replace.null.with.default`).
    """

    abstract = True

    def configure(self, config: TimestampConverterConfig) -> None:
        """Store the field, target type and formats."""
        self._field = config.field
        self._target = config.target_type
        text_format = SimpleDateFormat(config.format, dt.date.today()) if config.format.strip() else None
        self._readers = _readers(text_format, config.unix_precision)
        self._parse_usual_list = text_format.parse_usual_list if text_format is not None else None
        self._write = _writers(text_format, config.unix_precision)[config.target_type]
        self._replace_null = config.replace_null_with_default
        self._place = place_of(self.side, *([config.field] if config.field else []))
        self._expected = _SOURCES | {
            "string": f"STRING with the format {config.format}" if config.format.strip() else "STRING",
            "unix": f"INT64 with {config.unix_precision} since 1970",
        }
        self._plans = SchemaCache(self._struct_plan)

    def _converter(self, source: str) -> Callable[[Any], Any]:
        read, write = self._readers[source], self._write

        def convert(value: Any) -> Any:
            if value is None:
                return None
            try:
                return write(read(value))
            except _CONVERSION_ERRORS as error:
                message, expected = message_of(error), self._expected[source]
                raise record_error(message, self._place, expected, type_name(value)) from None

        return convert

    def _convert_list(self, source: str, items: list[Any]) -> list[Any]:
        """Convert each value of a list. A null stays null."""
        classes = set(map(type, items))
        if classes - {NoneType} == {_SOURCE_CLASSES[source]}:
            convert = partial(self._convert_regular, source)
            try:
                return without_nulls(convert, items) if NoneType in classes else convert(items)
            except _CONVERSION_ERRORS:
                pass  # convert the values one by one below
        return list(map(self._converter(source), items))

    def _convert_regular(self, source: str, items: list[Any]) -> list[Any]:
        """Convert a list of values of the class of `source`. Each of several equal values is converted only once."""
        if len(set(items[:_SAMPLE])) <= _SAMPLE // 2 < len(items):
            distinct = set(items)
            converted = dict(zip(distinct, self._convert_distinct(source, list(distinct)), strict=True))
            return list(map(converted.__getitem__, items))
        return self._convert_distinct(source, items)

    def _convert_distinct(self, source: str, items: list[Any]) -> list[Any]:
        if source == "string" and self._parse_usual_list is not None:
            try:
                return list(map(self._write, self._parse_usual_list(items)))
            except DataError:
                pass  # a text does not have the usual form, or its time is out of range
        return list(map(self._write, map(self._readers[source], items)))

    def _convert_untyped_list(self, items: list[Any]) -> list[Any]:
        classes = set(map(type, items)) - {NoneType}
        source = _CLASS_SOURCES.get(next(iter(classes))) if len(classes) == 1 else None
        return list(map(self._convert_untyped, items)) if source is None else self._convert_list(source, items)

    def _target_schema(self, optional: bool) -> Schema:
        schema = _SCHEMAS[self._target]
        return schema.replace(optional=True) if optional else schema

    def _struct_plan(self, schema: Schema) -> tuple[Schema, Callable[[list[Any]], list[Any]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        fields = [
            (field.name, self._target_schema(field.schema.optional) if field.name == self._field else field.schema)
            for field in schema.fields
        ]
        updated = copy_basics(schema, fields).replace(optional=schema.optional)
        convert_rows = self._rows_converter(schema)
        if schema.default is not None:
            [default] = convert_rows(to_rows(schema, [schema.default]))
            updated = updated.replace(default=struct_converter(updated)(default))
        return updated, convert_rows

    def _rows_converter(self, schema: Schema) -> Callable[[list[Any]], list[Any]]:
        filled = defaults_filler(schema, self._replace_null)
        field = schema.field(self._field)
        if field is None:
            return filled
        index = field.index

        def convert_rows(rows: list[Any]) -> list[Any]:
            if not rows:  # if all structs are null, the field may have any type, as in Kafka Connect
                return []
            convert = self._converter(self._type_of(field.schema))
            return [(*row[:index], convert(row[index]), *row[index + 1 :]) for row in filled(rows)]

        return convert_rows

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Convert the column of the field."""
        if not isinstance(values, Columns) or not self._field:
            return None
        if schema is None:
            column = field_column(values, self._field)
            return None, values.put(self._field, map_column(self._convert_untyped_list, column, len(values)))
        updated, _ = self._plans(schema)
        values = filled_with_defaults(schema, values, self._replace_null)
        field = schema.field(self._field)
        if field is None:
            return updated, values
        convert = partial(self._convert_list, self._type_of(field.schema))
        return updated, values.replace(field.index, map_column(convert, values.columns[field.index], len(values)))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Convert each value, or the configured field of each value."""
        if schema is None:
            return None, self._without_schema(values)
        if not self._field:
            convert = self._converter(self._type_of(schema))
            return self._target_schema(schema.optional), [convert(value) for value in values]
        updated, convert_rows = self._plans(schema)
        if None not in values:
            return updated, convert_rows(values)
        rows = iter(convert_rows([row for row in values if row is not None]))
        return updated, [None if row is None else next(rows) for row in values]

    def _without_schema(self, values: list[Any]) -> list[Any]:
        field, convert = self._field, self._convert_untyped
        if not field:
            return [convert(value) for value in values]
        require_maps([value for value in values if value is not None] or [{}], _PURPOSE, self.side)
        return [None if value is None else {**value, field: convert(value.get(field))} for value in values]

    def _convert_untyped(self, value: Any) -> Any:
        return None if value is None else self._converter(self._inferred_type(value))(value)

    def _type_of(self, schema: Schema) -> str:
        logical = {TIMESTAMP_NAME: "Timestamp", DATE_NAME: "Date", TIME_NAME: "Time"}.get(schema.name or "")
        if logical is not None:
            return logical
        if schema.type is Type.STRING:
            return "string"
        if schema.type is Type.INT64:
            return "unix"
        message = f"Schema {schema!r} does not correspond to a known timestamp type format"
        raise record_error(message, self._place, _ANY_SOURCE, schema_type_name(schema))

    def _inferred_type(self, value: Any) -> str:
        if isinstance(value, Timestamp):
            return "Timestamp"
        if isinstance(value, Date):
            return "Date"
        if isinstance(value, Time):
            return "Time"
        if isinstance(value, int) and not isinstance(value, bool):
            return "unix"
        if isinstance(value, str):
            return "string"
        found = type_name(value)
        message = f"TimestampConverter does not support {found} objects as timestamps"
        raise record_error(message, self._place, _ANY_SOURCE, found)


_PER_MILLISECOND = {"nanoseconds": 1_000_000, "microseconds": 1000}
_INT32_MIN, _INT32_MAX = INT_RANGES[Type.INT32]
_INT64_MIN, _INT64_MAX = INT_RANGES[Type.INT64]


def _truncated(number: int, divisor: int) -> int:
    """Divide and round towards zero, as Java does."""
    return number // divisor if number >= 0 else -(-number // divisor)


def _saturated(number: int) -> int:
    """Return the nearest 64-bit number, as the conversions of Java's ``TimeUnit`` do."""
    return min(max(number, _INT64_MIN), _INT64_MAX)


def _readers(text_format: SimpleDateFormat | None, precision: str) -> dict[str, Callable[[Any], int]]:
    """Return the functions that convert values to milliseconds since the epoch, by the type of the value."""
    unit = _PER_MILLISECOND.get(precision, 1)

    def from_text(value: Any) -> int:
        _require(str, value, "string timestamp to be a String")
        if text_format is None:
            raise DataError(f"Could not parse the timestamp string ({value}): no format is configured; set format")
        return text_format.parse(value)

    def from_unix(value: Any) -> int:
        _require(int, value, "Unix timestamp to be a Long")
        if not _INT64_MIN <= value <= _INT64_MAX:
            raise DataError(f"Unix timestamp {value} is out of range for type INT64")
        if precision == "seconds":
            return _saturated(value * 1000)
        return _truncated(value, unit) if unit != 1 else int(value)

    def from_date(value: Any) -> int:
        _require(int, value, "Date to be a Date")
        days: int = value
        return days * MILLIS_PER_DAY

    def from_time(value: Any) -> int:
        _require(int, value, "Time to be a Time")
        count: int = +value
        return count

    def from_timestamp(value: Any) -> int:
        _require(int, value, "Timestamp to be a Timestamp")
        count: int = +value
        return count

    return {
        "string": from_text,
        "unix": from_unix,
        "Date": from_date,
        "Time": from_time,
        "Timestamp": from_timestamp,
    }


def _require(class_: type, value: Any, what: str) -> None:
    if not isinstance(value, class_) or isinstance(value, bool):
        raise DataError(f"Expected {what}")


def _writers(text_format: SimpleDateFormat | None, precision: str) -> dict[str, Callable[[int], Any]]:
    """Return the functions that convert milliseconds since the epoch to values, by the target type."""
    unit = _PER_MILLISECOND.get(precision, 1)

    def to_unix(millis: int) -> int:
        if precision == "seconds":
            return _truncated(millis, 1000)
        return _saturated(millis * unit) if unit != 1 else millis

    def to_date(millis: int) -> Date:
        days = millis // MILLIS_PER_DAY
        return Date(days) if _INT32_MIN <= days <= _INT32_MAX else checked_count(DATE_NAME, days)

    return {
        "string": text_format.format if text_format is not None else str,
        "unix": to_unix,
        "Date": to_date,
        "Time": lambda millis: Time(millis % MILLIS_PER_DAY),
        "Timestamp": Timestamp,
    }


class TimestampConverterKey(TimestampConverter):
    """TimestampConverter applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.TimestampConverter$Key",)


class TimestampConverterValue(TimestampConverter):
    """TimestampConverter applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.TimestampConverter$Value",)
