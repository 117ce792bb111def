"""Converts whole columns of dates, times and timestamps, several times faster than value by value.

This module does no I/O.

A function of this module returns None for a column that contains a value which needs a conversion of its own, such as
an infinite date. `temporal_values` and the dialects then convert the values one by one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

from headrace.data.logical import Date, Time, Timestamp
from headrace_connectors.common.instants import MICROSECOND
from headrace_connectors.common.time_zones import to_instants
from headrace_connectors.jdbc.temporal_values import UnmappableError, instant_converter

ColumnConverter = Callable[[Sequence[Any]], "list[Any] | None"]
Integers = Callable[[Sequence[int]], "list[int] | None"]
"""Converts integers of the driver, or returns None if one of them is not a date or time."""
Times = Callable[[Sequence[int], int], "list[int] | None"]
"""Converts integers of the driver to times in a unit of as many microseconds as the second argument says."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LOCAL_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_ORDINAL = _EPOCH.toordinal()


def _no_integers(values: Sequence[int], unit_us: int = 1) -> list[int] | None:
    return None


def timestamp_columns(
    granularity: str,
    zone: dt.tzinfo,
    *,
    integers: Times = _no_integers,
    has_instants: bool = False,
) -> ColumnConverter:
    """Return a function that converts a column of timestamps for a `timestamp.granularity`.

    `integers` converts integers to instants if `has_instants` is true, and otherwise to wall-clock times.
    """
    is_logical = granularity == "connect_logical"
    from_instant = Timestamp if is_logical else instant_converter(granularity, zone)
    unit_us = 1000 if is_logical else 1

    def convert(values: Sequence[Any]) -> list[Any] | None:
        times, are_instants = _times(values, unit_us, integers, has_instants)
        if times is None:
            return None
        instants = times if are_instants else to_instants(times, zone, unit_us)
        try:
            return list(map(from_instant, instants))
        except UnmappableError:
            return None

    return _with_nulls(convert)


def _times(values: Sequence[Any], unit_us: int, integers: Times, has_instants: bool) -> tuple[list[int] | None, bool]:
    """Return (times, whether they are instants). The times are None if the values have no common type and zone."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return integers(values, unit_us), has_instants
    if kinds == {str}:
        try:
            values = list(map(dt.datetime.fromisoformat, values))
        except ValueError:
            return None, False
    elif kinds != {dt.datetime}:
        return None, False
    zones = {value.tzinfo for value in values}
    if len(zones) > 1:
        return None, False
    zone = zones.pop()
    # A difference of datetimes with the same time zone is computed faster. It ignores the offset from UTC.
    epoch = _LOCAL_EPOCH.replace(tzinfo=zone) if str(zone) in ("None", "UTC", "Etc/UTC") else _EPOCH
    unit = MICROSECOND * unit_us
    return [(value - epoch) // unit for value in values], zone is not None


def date_columns(integers: Integers = _no_integers) -> ColumnConverter:
    """Return a function that converts a column of dates. `integers` converts integers to days since 1970-01-01."""

    def convert(values: Sequence[Any]) -> list[Any] | None:
        kinds = set(map(type, values))
        if kinds == {int}:
            days = integers(values)
        elif kinds == {dt.date}:
            days = [value.toordinal() - _EPOCH_ORDINAL for value in values]
        else:
            return None
        return None if days is None else list(map(Date, days))

    return _with_nulls(convert)


def time_columns(integers: Integers = _no_integers) -> ColumnConverter:
    """Return a function that converts a column of times. `integers` converts integers to milliseconds of the day."""

    def convert(values: Sequence[Any]) -> list[Any] | None:
        kinds = set(map(type, values))
        if kinds == {int}:
            milliseconds = integers(values)
            return None if milliseconds is None else list(map(Time, milliseconds))
        if kinds != {dt.time} or any(value.tzinfo is not None for value in values):
            return None
        return list(map(Time.of, values))

    return _with_nulls(convert)


def _with_nulls(convert: ColumnConverter) -> ColumnConverter:
    """Return a function like `convert` that also accepts None, and keeps it."""

    def convert_column(values: Sequence[Any]) -> list[Any] | None:
        if None not in values:
            return convert(values)
        converted = convert([value for value in values if value is not None])
        if converted is None:
            return None
        present = iter(converted)
        return [None if value is None else next(present) for value in values]

    return convert_column
