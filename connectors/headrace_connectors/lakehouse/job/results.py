"""What a Spark task returns to the driver: descriptors of the files it wrote, and counts. This module does no I/O.

Rows never reach the driver. All classes are picklable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.api.record_access import FailedRecord
from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.offsets import Range

FAILED_RECORDS_MAX = 100
"""Maximum number of bad records in the result of a range. `RangeResult.bad_count` counts all of them."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot become a row.

    `columns_mismatch` is true if the record's schema is valid, but its columns are not the table's columns. `table` is
    the table for which the record was meant, or None if a converter or transform failed.
    """

    failure: FailedRecord
    table: str | None = None
    columns_mismatch: bool = False

    @property
    def offset(self) -> int:
        return self.failure.offset


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What a task did with one range of a partition.

    `bad` contains the first bad records of the range, at most FAILED_RECORDS_MAX. `bad_count` counts all bad records,
    and `first_bad` is the offset of the first one. `rows` counts the rows by table. `dropped_tombstones` counts, by
    table, the records without a value that could not become rows because the table did not exist. `newest_ms` is the
    largest record timestamp.
    """

    range: Range
    rows: dict[str, int] = field(default_factory=dict)
    bad: tuple[BadRecord, ...] = ()
    bad_count: int = 0
    first_bad: int | None = None
    dropped_tombstones: dict[str, int] = field(default_factory=dict)
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """The columns that a task used for a table that did not exist, and the record that has these columns.

    `missing` says whether the record has no value, and whether it has no key although the table stores keys. The schema
    of a null may differ from that of other values, because some transforms do not change nulls. So the driver prefers
    the columns of a record with both, and of several such records that with the smallest (topic, partition, offset).
    """

    table: str
    columns: tuple[TableColumn, ...]
    topic: str
    partition: int
    offset: int
    missing: tuple[bool, bool] = (False, False)

    @property
    def order(self) -> tuple[tuple[bool, bool], str, int, int]:
        return (self.missing, self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one Spark task. `host` names the executor's host."""

    files: tuple[DataFile, ...] = ()
    ranges: tuple[RangeResult, ...] = ()
    found_columns: tuple[FoundColumns, ...] = ()
    host: str = ""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a Spark task could not load its ranges. `is_retriable` is true if the Kafka cluster was not available."""

    message: str
    is_retriable: bool = False
