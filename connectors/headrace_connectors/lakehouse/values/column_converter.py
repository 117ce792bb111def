"""Converts the values of one column to an Arrow array: all at once if they are regular, otherwise one by one.

A vectorised function converts values that are proven to be regular, and raises an exception for all others. Then the
exact function converts each value, and finds those that do not fit. This module does no I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.values.arrow_types import TIMESTAMP, arrow_type
from headrace_connectors.lakehouse.values.mismatch import MismatchError

_TIME_WITH_ZONE = r":[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"

Vectorised = Callable[[Sequence[Any]], pa.Array]
_IRREGULAR = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


class ColumnConverter:
    """Converts values to the type of a column. `name` is the column's name in messages.

    `vectorised` may be None. It raises one of Arrow's exceptions, TypeError, ValueError (also UnicodeEncodeError) or
    OverflowError if it cannot convert the values. `exact` converts one value, and raises MismatchError.
    """

    def __init__(
        self, name: str, type_: ColumnType, vectorised: Vectorised | None, exact: Callable[[Any], Any]
    ) -> None:
        self._name = name
        self._type = type_
        self._arrow_type = arrow_type(type_)
        self._vectorised = vectorised
        self._exact = exact

    def convert(self, values: Sequence[Any], bad: dict[int, str]) -> pa.Array:
        """Return the values as an Arrow array. Values that do not fit become null, and are added to `bad`."""
        if self._vectorised is not None:
            try:
                return self._vectorised(values)
            except _IRREGULAR:
                pass
        return self._convert_one_by_one(values, bad)

    def _convert_one_by_one(self, values: Sequence[Any], bad: dict[int, str]) -> pa.Array:
        exact = self._exact
        converted: list[Any] = []
        for index, value in enumerate(values):
            try:
                converted.append(exact(value))
            except MismatchError as error:
                converted.append(None)
                bad.setdefault(index, str(error.inside(self._name)))
            except RecursionError:
                converted.append(None)
                bad.setdefault(index, f"field {self._name}: the value has too many nested levels")
        return pa.array(converted, self._arrow_type)


def plain(type_: pa.DataType) -> Vectorised:
    """Return the function for values that `pyarrow.array` converts."""
    return lambda values: pa.array(values, type_)


def of_classes(convert: Vectorised, *classes: type) -> Vectorised:
    """Return the function `convert` for values of exactly these classes and nulls, because Arrow accepts more."""
    allowed = frozenset((*classes, type(None)))

    def checked(values: Sequence[Any]) -> pa.Array:
        if not allowed.issuperset(map(type, values)):
            raise TypeError("the values have several types")
        return convert(values)

    return checked


def by_class(converters: Mapping[type, Vectorised]) -> Vectorised:
    """Return the function for values that are all null or of one class: it calls the function of this class."""

    def convert(values: Sequence[Any]) -> pa.Array:
        classes = set(map(type, values)) - {type(None)}
        if len(classes) > 1 or not classes <= converters.keys():
            raise TypeError("the values have several types")
        return converters[classes.pop() if classes else next(iter(converters))](values)

    return convert


def seconds_to_timestamps(values: Sequence[Any]) -> pa.Array:
    """Convert seconds since 1970. Raises ArrowInvalid if microseconds do not fit 64 bits."""
    return pc.multiply_checked(pa.array(values, pa.int64()), 1_000_000).view(TIMESTAMP)


def millis_to_timestamps(values: Sequence[Any]) -> pa.Array:
    """Convert milliseconds since 1970. Raises ArrowInvalid if microseconds do not fit 64 bits."""
    return pc.multiply_checked(pa.array(values, pa.int64()), 1000).view(TIMESTAMP)


def days_to_dates(values: Sequence[Any]) -> pa.Array:
    """Convert days since 1970."""
    return pa.array(values, pa.int32()).view(pa.date32())


def iso_timestamps(values: Sequence[Any]) -> pa.Array:
    """Convert ISO 8601 texts. Either all texts have a time zone, which is Z or an offset, or none has one."""
    texts = pa.array(values, pa.string())
    is_utc = pc.ends_with(texts, "Z")
    if not pc.any(is_utc).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # Arrow's type without a time zone does not allow offsets
            return texts.cast(pa.timestamp("us")).view(TIMESTAMP)
    elif pc.all(is_utc).as_py() and pc.min(pc.binary_length(texts)).as_py() >= len("2024-01-02T03:04:05Z"):
        return texts.cast(TIMESTAMP)
    # Arrow also allows larger offsets, and time zones after a time without seconds.
    if not pc.all(pc.match_substring_regex(texts, _TIME_WITH_ZONE)).as_py():
        raise ValueError("some texts have no time zone, or another one")
    return texts.cast(TIMESTAMP)


def iso_dates(values: Sequence[Any]) -> pa.Array:
    """Convert texts of the form 2024-01-02."""
    return pa.array(values, pa.string()).cast(pa.date32())
