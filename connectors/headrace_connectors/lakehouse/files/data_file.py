"""The descriptor of a data file, which a task returns and a committer adds to the table. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that a task wrote, and that no commit mentions yet.

    `path` is relative to the location that the committer returned for the table. `footer` is the file's Parquet footer
    (`pyarrow.parquet.read_metadata` parses it); it has the number of rows and the statistics of each column.
    `partition` has the value of each partition field of the table, in Python's types of the field: int for bucket,
    year, month and hour (counts since 1970, as in Iceberg's specification), date for day, and the column's value for
    identity and truncate. None is null.
    """

    table: str
    path: str
    size: int
    rows: int
    footer: bytes = field(repr=False)
    partition: tuple[Any, ...] = ()
