"""Counts rows and collects the first bad records while a range is loaded. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.api.record_access import FailedRecord
from headrace_connectors.lakehouse.job.results import FAILED_RECORDS_MAX, BadRecord, RangeResult
from headrace_connectors.lakehouse.offsets import Range


class RangeSummary:
    """What was done with one range so far. At most `bad_max` bad records are kept."""

    def __init__(self, range_: Range, bad_max: int = FAILED_RECORDS_MAX) -> None:
        self._range = range_
        self._bad_max = bad_max
        self._bad: list[BadRecord] = []
        self.bad_count = 0
        self._first_bad: int | None = None
        self._rows: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._newest_ms: int | None = None

    def add_failed(self, failures: Iterable[FailedRecord], count: int, first_offset: int | None) -> None:
        """Add records for which a converter, predicate or transform failed.

        `failures` may contain only the first of them. `count` is the number of all.
        """
        self.bad_count += count
        self._update_first_bad(first_offset)
        self._bad += [BadRecord(failure) for failure in failures]
        self._remove_last_bad()

    def add_bad(self, failure: FailedRecord, table: str | None, *, columns_mismatch: bool = False) -> None:
        """Add a record that cannot become a row of `table`."""
        self.bad_count += 1
        self._update_first_bad(failure.offset)
        if len(self._bad) < self._bad_max:
            self._bad.append(BadRecord(failure, table, columns_mismatch))

    def add_rows(self, table: str, count: int, timestamps: Sequence[int | None] | int | None) -> None:
        """Add rows of a table. `timestamps` are the timestamps of their records."""
        self._rows[table] = self._rows.get(table, 0) + count
        newest = timestamps if isinstance(timestamps, int) else max(filter(None, timestamps or ()), default=None)
        if newest is not None:
            self._newest_ms = max(newest, self._newest_ms or 0)

    def add_dropped_tombstones(self, table: str, count: int) -> None:
        """Add records without a value that cannot become rows, because the table does not exist."""
        self._dropped[table] = self._dropped.get(table, 0) + count

    def result(self) -> RangeResult:
        """Return the result of the range."""
        bad = tuple(sorted(self._bad, key=lambda each: each.offset))
        return RangeResult(
            self._range, self._rows, bad, self.bad_count, self._first_bad, self._dropped, self._newest_ms
        )

    def take_bad(self) -> list[BadRecord]:
        """Return the bad records that were added since the last call, ordered by offset."""
        taken, self._bad = sorted(self._bad, key=lambda each: each.offset), []
        return taken

    def _update_first_bad(self, offset: int | None) -> None:
        if offset is not None:
            self._first_bad = offset if self._first_bad is None else min(self._first_bad, offset)

    def _remove_last_bad(self) -> None:
        if len(self._bad) > self._bad_max:
            self._bad = sorted(self._bad, key=lambda each: each.offset)[: self._bad_max]
