"""Describes the errors of bad records, which cannot become table rows, and applies `errors.tolerance` to them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import DataError
from headrace.api.task import ErrantRecord, SelfReadingErrantRecordReporter
from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.layouts import RecordLayout, RecordPosition
from headrace_connectors.lakehouse.ranges import TopicPartition

OUT_OF_RANGE = "\x1f"
"""Prefix of the error for a parsed value that does not fit its column. JSON never starts with this character."""

logger = logging.getLogger(__name__)

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
    """A record that cannot become a row, and the reason.

    `columns_mismatch` is true if the record's schema is valid, but its columns are not the table's columns.
    """

    position: RecordPosition
    reason: str
    columns_mismatch: bool = False

    def __str__(self) -> str:
        return f"{self.position}: {self.reason}"

    def as_errant(self) -> ErrantRecord:
        """Return the record as the ErrantRecord that the task reports."""
        position = self.position
        error = DataError(self.reason)
        return ErrantRecord(position.topic, position.partition, position.offset, error, "VALUE_CONVERTER")


class BadRecordError(DataError):
    """The error with which the task fails because of bad records.

    `first_bad_offsets` has the offset of each partition's first bad record. The records before this offset are loaded.
    """

    def __init__(self, bad: Sequence[BadRecord]) -> None:
        first = bad[0]
        self.first_bad_offsets: dict[TopicPartition, int] = {}
        for record in bad:
            self.first_bad_offsets.setdefault(
                (record.position.topic, record.position.partition), record.position.offset
            )
        more = f" (and {len(bad) - 1} more bad records in this batch)" if len(bad) > 1 else ""
        super().__init__(
            f"{first}{more}; the records before each partition's first bad record are loaded. "
            f"{_ADVICE[first.columns_mismatch]}"
        )


_SKIP = (
    "set errors.tolerance=all to skip such records, and errors.deadletterqueue.topic.name=<topic> to keep them in a"
    " dead letter queue"
)
_ADVICE = {
    False: f"To continue, {_SKIP}.",
    True: f"To continue, add the new columns to the table and restart the task; or {_SKIP}, from which a second"
    " connector can load them into another table (the connector's README shows both).",
}


class BadRecordHandler:
    """Applies `errors.tolerance` to bad records: either reports and skips these records, or fails the task."""

    def __init__(self, reporter: SelfReadingErrantRecordReporter) -> None:
        self._reporter = reporter
        self.skipped = 0

    def handle(self, bad: Sequence[BadRecord]) -> BadRecordError | None:
        """Return None if the bad records are skipped. Otherwise, return the error that fails the task.

        In each partition, the caller first loads the records with smaller offsets than the first bad record. Then the
        caller raises the error.
        """
        if not bad:
            return None
        ordered = sorted(
            bad, key=lambda record: (record.position.topic, record.position.partition, record.position.offset)
        )
        if not self._reporter.tolerates_errors:
            return BadRecordError(ordered)
        self._reporter.report([record.as_errant() for record in ordered])
        self.skipped += len(ordered)
        logger.warning(
            "Skipped %d bad records (total since the task started: %d). First bad record: %s",
            len(ordered),
            self.skipped,
            ordered[0],
        )
        return None


def describe_bad_payload(text: str, layout: RecordLayout, *, decimals_numeric: bool) -> str:
    """Return the reason why Spark could not parse the payload `text`.

    The reason names the first field that does not match its type, if there is such a field.
    """
    if text.startswith(OUT_OF_RANGE):
        return text[len(OUT_OF_RANGE) :]
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"the payload is not JSON: {error}"
    mismatch = _find_mismatch(ColumnType("struct", fields=layout.columns), value, "", layout, decimals_numeric)
    return mismatch or f"the payload does not match its schema: {_short(value)}"


def _find_mismatch(type_: ColumnType, value: Any, path: str, layout: RecordLayout, numeric: bool) -> str | None:
    """Return a description of the first value at or below `path` that does not match its type, or None.

    `value` is the parsed JSON at `path`, and should match `type_`. `layout` determines the JSON encoding of dates and
    decimals. With `numeric`, decimals are always JSON numbers.
    """
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
        mismatch = _find_mismatch(child_type, child, child_path, layout, numeric)
        if mismatch is not None:
            return mismatch
    return None


def _fits(type_: ColumnType, value: Any, layout: RecordLayout, numeric: bool) -> bool:
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
