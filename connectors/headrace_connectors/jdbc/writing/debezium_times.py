"""Converts the dates, times and timestamps of Debezium's connectors (``io.debezium.time.*``). This module does no I/O.

These types are numbers since midnight or since the epoch, or ISO 8601 text. The sink converts their values for columns
whose SQL type is a date, a time or a timestamp. In other columns, it stores the numbers and the text unchanged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.api.errors import DataError
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA
from headrace.data.schema import Schema, Type
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.timestamps import timestamp_reader

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_read_zoned = timestamp_reader("", "microseconds")


class DebeziumTime(NamedTuple):
    """One of Debezium's types."""

    type: Type
    logical: Schema
    """The logical type of Kafka Connect that represents the same values."""
    fraction_digits: int
    """The number of digits after the second: 3 or 6. Nanoseconds are truncated to microseconds."""
    read: Callable[[Any], Any]
    """Converts a value to a value of the logical type. Raises ValueError or OverflowError."""


def _timestamp(per_second: int) -> Callable[[int], dt.datetime]:
    return lambda value: _EPOCH + dt.timedelta(microseconds=value * 1_000_000 // per_second)


def _time(per_second: int) -> Callable[[int], dt.time]:
    def read(value: int) -> dt.time:
        if not 0 <= value < 86_400 * per_second:
            raise ValueError("the time is not between 00:00 and 24:00")
        return _timestamp(per_second)(value).time()

    return read


def _zoned_timestamp(text: str) -> dt.datetime:
    try:
        return _read_zoned(text)
    except DataError:
        raise ValueError("the text is not an ISO 8601 timestamp") from None


_TYPES = {
    "Date": DebeziumTime(Type.INT32, DATE_SCHEMA, 0, lambda days: dt.date.fromordinal(_EPOCH_DAY + days)),
    "Time": DebeziumTime(Type.INT32, TIME_SCHEMA, 3, _time(1000)),
    "MicroTime": DebeziumTime(Type.INT64, TIME_SCHEMA, 6, _time(1_000_000)),
    "NanoTime": DebeziumTime(Type.INT64, TIME_SCHEMA, 6, _time(1_000_000_000)),
    "Timestamp": DebeziumTime(Type.INT64, TIMESTAMP_SCHEMA, 3, _timestamp(1000)),
    "MicroTimestamp": DebeziumTime(Type.INT64, TIMESTAMP_SCHEMA, 6, _timestamp(1_000_000)),
    "NanoTimestamp": DebeziumTime(Type.INT64, TIMESTAMP_SCHEMA, 6, _timestamp(1_000_000_000)),
    "ZonedTimestamp": DebeziumTime(Type.STRING, TIMESTAMP_SCHEMA, 6, _zoned_timestamp),
}
_PREFIX = "io.debezium.time."


def debezium_time(schema: Schema) -> DebeziumTime | None:
    """Return the Debezium type that a schema represents, or None if it represents none of them."""
    if schema.name is None or not schema.name.startswith(_PREFIX):
        return None
    found = _TYPES.get(schema.name.removeprefix(_PREFIX))
    return found if found is not None and found.type is schema.type else None


def as_logical(column: Column, values: Sequence[Any]) -> tuple[Column, Sequence[Any]]:
    """Return a column and its values with the logical type of Kafka Connect if the column has a Debezium type.

    Otherwise, return both unchanged. Raises DataError for a value that has no logical value.
    """
    found = None if column.is_timestamp else debezium_time(column.schema)
    if found is None:
        return column, values
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else found.read(value))
        except (ValueError, OverflowError) as error:
            reason = f"field {column.name}: {value!r:.40} is not a valid {column.schema.name}: {error}"
            raise DataError(reason) from None
    logical = found.logical.replace(optional=column.schema.optional)
    return column._replace(schema=logical), converted
