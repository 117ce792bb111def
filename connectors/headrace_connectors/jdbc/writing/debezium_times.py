"""Converts the dates, times and timestamps of Debezium's connectors (``io.debezium.time.*``). This module does no I/O.

These types are numbers since midnight or since the epoch, or ISO 8601 text. The sink converts their values for columns
whose SQL type is a date, a time or a timestamp. In other columns, it stores the numbers and the text unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.api.errors import DataError
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA
from headrace.data.schema import Schema, Type
from headrace_connectors.jdbc.writing.timestamps import timestamp_reader

_read_zoned = timestamp_reader("", "microseconds")


class DebeziumTime(NamedTuple):
    """One of Debezium's types."""

    type: Type
    logical: Schema
    """The logical type of Kafka Connect that represents the same values."""
    fraction_digits: int
    """The number of digits after the second: 3 or 6. Nanoseconds are truncated to microseconds."""
    read: Callable[[Any], Any]
    """Converts a value to days since 1970-01-01, microseconds since midnight, or an instant. Raises ValueError."""


def _timestamp(per_second: int) -> Callable[[int], int]:
    return lambda value: value * 1_000_000 // per_second


def _time(per_second: int) -> Callable[[int], int]:
    def read(value: int) -> int:
        if not 0 <= value < 86_400 * per_second:
            raise ValueError("the time is not between 00:00 and 24:00")
        return value * 1_000_000 // per_second

    return read


def _zoned_timestamp(text: str) -> int:
    try:
        return _read_zoned(text)
    except DataError:
        raise ValueError("the text is not an ISO 8601 timestamp") from None


_TYPES = {
    "Date": DebeziumTime(Type.INT32, DATE_SCHEMA, 0, int),
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
