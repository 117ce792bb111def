"""The error for a value that a column cannot store. This module does no I/O."""

from __future__ import annotations

import json
from typing import Any

from headrace_connectors.lakehouse.column_types import ColumnType

_LENGTH_MAX = 80


class MismatchError(Exception):
    """A value does not fit the type of its column. Callers add the path of the value inside the record.

    If `is_range` is true, the value has the right type, but it is out of the range of the column.
    """

    def __init__(self, type_: ColumnType, value: Any, *, is_range: bool = False) -> None:
        super().__init__()
        self._type = type_
        self._value = value
        self._is_range = is_range
        self._path = ""

    def inside(self, part: str) -> MismatchError:
        """Add the name of a field or `[index]` in front of the path; returns self."""
        separator = "" if not self._path or self._path.startswith("[") else "."
        self._path = f"{part}{separator}{self._path}"
        return self

    def __str__(self) -> str:
        where = f"field {self._path}" if self._path else "the payload"
        if self._is_range:
            return f"{where}: the value does not fit {self._type}"
        return f"{where}: expected {self._type}, found {short(self._value)}"


def short(value: Any) -> str:
    """Return a value as JSON for a message, cut to a limited length."""
    if isinstance(value, (str, list, tuple, dict, bool)) or value is None:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
    else:
        text = str(value)
    return text if len(text) <= _LENGTH_MAX else text[: _LENGTH_MAX - 3] + "..."
