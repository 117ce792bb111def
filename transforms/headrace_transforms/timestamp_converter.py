"""TimestampConverter: convert timestamps between Unix time, strings and Connect's Date, Time and Timestamp."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError, DataError
from headrace.data.batch import Batch
from headrace.data.java_dates import SimpleDateFormat, pattern_warnings
from headrace.data.logical import (
    DATE_NAME,
    DATE_SCHEMA,
    TIME_NAME,
    TIME_SCHEMA,
    TIMESTAMP_NAME,
    TIMESTAMP_SCHEMA,
    millis_to_timestamp,
    timestamp_to_millis,
)
from headrace.data.schema import INT64_SCHEMA, STRING_SCHEMA, Schema, Type
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
_ANY_SOURCE = "STRING, INT64, Date, Time or Timestamp"
_EPOCH_DAY = dt.date(1970, 1, 1)


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
        self._precision = config.unix_precision
        self._readers = _readers(text_format, config.unix_precision)
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
        if source == self._target == "unix":
            return self._rounded  # supports years that Python's datetime does not

        def convert(value: Any) -> Any:
            if value is None:
                return None
            try:
                return write(read(value))
            except (DataError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                message, expected = message_of(error), self._expected[source]
                raise record_error(message, self._place, expected, type_name(value)) from None

        return convert

    def _rounded(self, value: Any) -> Any:
        """Round a Unix timestamp, which is in the configured unit, to whole milliseconds, towards zero."""
        if value is None:
            return None
        try:
            _require(int, value, "Unix timestamp to be a Long")
        except DataError as error:
            raise record_error(str(error), self._place, self._expected["unix"], type_name(value)) from None
        unit = _PER_MILLISECOND.get(self._precision, 1)
        return _truncated(value, unit) * unit

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
        filled = defaults_filler(schema, self._replace_null)
        field = schema.field(self._field)
        if field is None:
            return updated, filled
        index, convert = field.index, self._converter(self._type_of(field.schema))

        def converted(row: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*row[:index], convert(row[index]), *row[index + 1 :])

        return updated, lambda rows: [converted(row) for row in filled(rows)]

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
        if isinstance(value, dt.datetime):
            return "Timestamp"
        if isinstance(value, dt.date):
            return "Date"
        if isinstance(value, dt.time):
            return "Time"
        if isinstance(value, int) and not isinstance(value, bool):
            return "unix"
        if isinstance(value, str):
            return "string"
        found = type_name(value)
        message = f"TimestampConverter does not support {found} objects as timestamps"
        raise record_error(message, self._place, _ANY_SOURCE, found)


_PER_MILLISECOND = {"nanoseconds": 1_000_000, "microseconds": 1000}


def _truncated(number: int, divisor: int) -> int:
    """Divide and round towards zero, as Java does."""
    return number // divisor if number >= 0 else -(-number // divisor)


def _readers(text_format: SimpleDateFormat | None, precision: str) -> dict[str, Callable[[Any], dt.datetime]]:
    def from_text(value: Any) -> dt.datetime:
        _require(str, value, "string timestamp to be a String")
        if text_format is None:
            raise DataError(f"Could not parse the timestamp string ({value}): no format is configured; set format")
        return text_format.parse(value)

    def from_unix(value: Any) -> dt.datetime:
        _require(int, value, "Unix timestamp to be a Long")
        if precision == "seconds":
            return millis_to_timestamp(value * 1000)
        return millis_to_timestamp(_truncated(value, _PER_MILLISECOND.get(precision, 1)))

    def from_date(value: Any) -> dt.datetime:
        _require(dt.date, value, "Date to be a date")
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)

    def from_time(value: Any) -> dt.datetime:
        _require(dt.time, value, "Time to be a time")
        return dt.datetime.combine(_EPOCH_DAY, value, dt.UTC)

    def from_timestamp(value: Any) -> dt.datetime:
        _require(dt.datetime, value, "Timestamp to be a datetime")
        moment: dt.datetime = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
        return moment

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


def _writers(text_format: SimpleDateFormat | None, precision: str) -> dict[str, Callable[[dt.datetime], Any]]:
    def to_unix(moment: dt.datetime) -> int:
        millis = timestamp_to_millis(moment)
        if precision == "seconds":
            return _truncated(millis, 1000)
        return millis * _PER_MILLISECOND.get(precision, 1)

    return {
        "string": text_format.format if text_format is not None else str,
        "unix": to_unix,
        "Date": dt.datetime.date,
        "Time": lambda moment: moment.time().replace(microsecond=moment.microsecond // 1000 * 1000),
        "Timestamp": lambda moment: moment,
    }


class TimestampConverterKey(TimestampConverter):
    """TimestampConverter applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.TimestampConverter$Key",)


class TimestampConverterValue(TimestampConverter):
    """TimestampConverter applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.TimestampConverter$Value",)
