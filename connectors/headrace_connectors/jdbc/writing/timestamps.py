"""Reads fields of ``timestamp.fields.list``: microseconds or nanoseconds since the epoch, or ISO 8601 text.

This module does no I/O.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

from headrace.api.errors import DataError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_NANOSECONDS = re.compile(r"(\.\d{6})\d+")


def timestamp_reader(field: str, precision_mode: str) -> Callable[[int | str], dt.datetime]:
    """Return a function that converts a field's value to an instant in UTC, or raises DataError.

    Integers are nanoseconds since the epoch if `precision_mode` is `nanoseconds`, otherwise microseconds.
    """
    per_microsecond = 1000 if precision_mode.lower() == "nanoseconds" else 1

    def read(value: int | str) -> dt.datetime:
        try:
            if isinstance(value, str) and not _INTEGER.fullmatch(value):
                instant = dt.datetime.fromisoformat(_NANOSECONDS.sub(r"\1", value))
                return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)
            return _EPOCH + dt.timedelta(microseconds=int(value) // per_microsecond)
        except (ValueError, OverflowError):
            raise DataError(
                f"field {field}: {value!r:.40} is neither an ISO 8601 timestamp nor a number of "
                f"{precision_mode.lower()} since 1970; check timestamp.fields.list and timestamp.precision.mode"
            ) from None

    return read
