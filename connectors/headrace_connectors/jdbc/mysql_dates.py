"""Converts the text of MySQL's dates and times to Python objects."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions

from headrace_connectors.jdbc.types import Unmappable

_FIRST_INSTANT = dt.datetime.min.replace(tzinfo=dt.UTC)


def _date(text: str) -> dt.date | Unmappable:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return Unmappable(text, dt.date.min)


def _datetime(text: str) -> dt.datetime | Unmappable:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return Unmappable(text, _FIRST_INSTANT)


def _timestamp(text: str) -> dt.datetime | Unmappable:
    value = _datetime(text)
    return value if isinstance(value, Unmappable) else value.replace(tzinfo=dt.UTC)


def _time(text: str) -> dt.time | Unmappable:
    try:
        return dt.time.fromisoformat(text)
    except ValueError:  # MySQL's times are durations between -838:59:59 and 838:59:59
        return Unmappable(text, dt.time.min if text.startswith("-") else dt.time.max)


_ZERO_DATE = "0000-00-00"
_DECODERS: Mapping[int, Callable[[str], Any]] = {
    FIELD_TYPE.DATE: _date,
    FIELD_TYPE.NEWDATE: _date,
    FIELD_TYPE.DATETIME: _datetime,
    FIELD_TYPE.TIMESTAMP: _timestamp,
}


def decoders(zero_dates: str) -> dict[int, Any]:
    """Return the decoders for PyMySQL. `zero_dates` is the value of the property zeroDateTimeBehavior."""
    found: dict[Any, Any] = {**conversions, **_DECODERS, FIELD_TYPE.TIME: _time}
    if zero_dates != "EXCEPTION":
        found |= {code: _with_zero_dates(decode, zero_dates) for code, decode in _DECODERS.items()}
    return found


def _with_zero_dates(decode: Callable[[str], Any], zero_dates: str) -> Callable[[str], Any]:
    def decode_zero_date(text: str) -> Any:
        if not text.startswith(_ZERO_DATE):
            return decode(text)
        return decode(text).nearest if zero_dates == "ROUND" else None

    return decode_zero_date
