"""Reads fields of ``timestamp.fields.list``: microseconds or nanoseconds since the epoch, or ISO 8601 text.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.api.errors import DataError
from headrace_connectors.common.instants import parse_timestamp

_INTEGER = re.compile(r"-?\d+", re.ASCII)


def timestamp_reader(field: str, precision_mode: str) -> Callable[[int | str], int]:
    """Return a function that converts a field's value to an instant (see `common.instants`), or raises DataError.

    Integers are nanoseconds since the epoch if `precision_mode` is `nanoseconds`, otherwise microseconds.
    """
    per_microsecond = 1000 if precision_mode.lower() == "nanoseconds" else 1

    def read(value: int | str) -> int:
        try:
            if isinstance(value, str) and not _INTEGER.fullmatch(value):
                time, offset = parse_timestamp(value)
                return time - (offset or 0)
            return int(value) // per_microsecond
        except ValueError:
            raise DataError(
                f"field {field}: {value!r:.40} is neither an ISO 8601 timestamp nor a number of "
                f"{precision_mode.lower()} since 1970; check timestamp.fields.list and timestamp.precision.mode"
            ) from None

    return read
