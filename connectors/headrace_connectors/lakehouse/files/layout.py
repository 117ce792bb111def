"""The layout of a table's files: partition fields and sort order. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_connectors.lakehouse.column_types import quoted


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the partition specification, with Iceberg's transforms.

    `transform` is identity, year, month, day, hour, bucket or truncate. `argument` is the number of buckets or the
    width of truncate, otherwise 0. `name` is the name of the partition column in a Delta table, or of the partition
    field in an Iceberg table: the column's name for identity, otherwise for example `ts_day`.
    """

    column: str
    transform: str = "identity"
    argument: int = 0

    @property
    def name(self) -> str:
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"

    def __str__(self) -> str:
        """Return the field as `lakehouse.partition.by` contains it, such as `bucket(16, id)`."""
        if self.transform == "identity":
            return quoted(self.column)
        argument = f"{self.argument}, " if self.argument else ""
        return f"{self.transform}({argument}{quoted(self.column)})"


@dataclass(frozen=True, slots=True)
class SortField:
    """A column of the sort order inside files."""

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How rows are distributed to files, and ordered in them."""

    partition_fields: tuple[PartitionField, ...] = ()
    sort_fields: tuple[SortField, ...] = ()
