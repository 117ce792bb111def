"""Records that cannot become rows: what is wrong with each, and what `errors.tolerance` does about them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import DataError
from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.layouts import Layout, Place
from headrace_connectors.lakehouse.ranges import TopicPartition

OUT_OF_RANGE = "\x1f"
"""Begins the text of a value that was read but does not fit its column; no JSON begins so."""

_LOGGED_MAX = 20
_log = logging.getLogger(__name__)

_JSON_TYPES = {
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "time": int,
    "boolean": bool,
    "array": list,
    "struct": dict,
    "bytes": str,
}
_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "time": 32, "date": 32, "timestamp": 64}


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no row, and why; `of_other_columns` when its schema is sound and its table has another."""

    place: Place
    reason: str
    of_other_columns: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class StoppingRecordError(DataError):
    """A record that ends the task once all before it is loaded: `ends` has the first bad offset of each partition."""

    def __init__(self, bad: Sequence[BadRecord]) -> None:
        first = bad[0]
        self.ends: dict[TopicPartition, int] = {}
        for record in bad:
            self.ends.setdefault((record.place.topic, record.place.partition), record.place.offset)
        more = f" (and {len(bad) - 1} more records of this batch)" if len(bad) > 1 else ""
        super().__init__(f"{first}{more}; all records before it are loaded. {_WAY_ON[first.of_other_columns]}")


_SKIP = (
    "errors.tolerance=all skips such records, and errors.deadletterqueue.topic.name=<topic> keeps them in a topic as"
    " they are"
)
_WAY_ON = {
    False: f"{_SKIP}.",
    True: f"To go on, give the table the new columns and restart; or {_SKIP}, which a second connector can load into a"
    " table of its own (the connector's README shows both).",
}


class BadRecords:
    """Applies `errors.tolerance`: stop at the first, or skip, count, log and hand over to the dead letter queue."""

    def __init__(
        self, *, tolerate: bool, log: bool, dead_letters: Callable[[Sequence[BadRecord]], None] | None = None
    ) -> None:
        self._tolerate = tolerate
        self._log = log
        self._dead_letters = dead_letters
        self.skipped = 0

    def handle(self, bad: Sequence[BadRecord]) -> StoppingRecordError | None:
        """Return None when the records may be skipped, else the error to raise once what precedes them is loaded."""
        if not bad:
            return None
        ordered = sorted(bad, key=lambda record: (record.place.topic, record.place.partition, record.place.offset))
        if not self._tolerate:
            return StoppingRecordError(ordered)
        if self._dead_letters is not None:
            self._dead_letters(ordered)
        self.skipped += len(ordered)
        _log.warning(
            "Skipped %d records that cannot become rows, %d in all; the first: %s",
            len(ordered),
            self.skipped,
            ordered[0],
        )
        if self._log:
            for record in ordered[:_LOGGED_MAX]:
                _log.error("Bad record skipped: %s", record)
        return None


def diagnose(text: str, layout: Layout, *, decimals_numeric: bool) -> str:
    """Say what is wrong with a payload that Spark could not read, naming the field where one is at fault."""
    if text.startswith(OUT_OF_RANGE):
        return text[len(OUT_OF_RANGE) :]
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"the payload is not JSON: {error}"
    fault = _fault(ColumnType("struct", fields=layout.columns), value, "", layout, decimals_numeric)
    return fault or f"the payload does not fit its schema: {_short(value)}"


def _fault(type_: ColumnType, value: Any, path: str, layout: Layout, numeric: bool) -> str | None:
    """Return the first fault at or below a path, None when this walk finds none."""
    if value is None:
        return None
    if not _fits(type_, value, layout, numeric):
        where = f"field {path}" if path else "the payload"
        return f"{where}: expected {type_}, found {_short(value)}"
    children: list[tuple[ColumnType, Any, str]] = []
    if type_.kind == "struct":
        children = [(column.type, value.get(column.name), _join(path, column.name)) for column in type_.fields]
    elif type_.kind == "array" and type_.element is not None:
        children = [(type_.element, item, f"{path}[{index}]") for index, item in enumerate(value)]
    elif type_.kind == "map" and type_.element is not None and isinstance(value, dict):
        children = [(type_.element, item, _join(path, key)) for key, item in value.items()]
    for child_type, child, child_path in children:
        fault = _fault(child_type, child, child_path, layout, numeric)
        if fault is not None:
            return fault
    return None


def _fits(type_: ColumnType, value: Any, layout: Layout, numeric: bool) -> bool:
    kind = type_.kind
    if kind in ("date", "timestamp") and not layout.encoded:
        return isinstance(value, str | int)
    if kind == "decimal":
        return isinstance(value, int | float) if numeric or not layout.encoded else isinstance(value, str)
    if kind in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind in ("float32", "float64"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    expected = _JSON_TYPES.get(kind)
    return expected is None or isinstance(value, expected)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
