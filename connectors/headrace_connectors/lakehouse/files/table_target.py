"""A table for which executors write files: where, with which columns, and in which layout. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.files.field_ids import FieldId
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table for which a task may write files. Picklable.

    `location` is the directory or URI for new files, or None if it is not known yet: then the task only reports the
    columns of its first record. `columns` are all columns of the table, or None if the table does not exist: then the
    task uses the columns of its first record with a value and a key. `next_offsets` are the offsets below which records
    are already in the table. `display_name` names the table in errors. `field_ids` are the ids for `with_field_ids`;
    only Iceberg tables have them.
    """

    name: str
    location: str | None
    columns: tuple[TableColumn, ...] | None = None
    layout: FileLayout = field(default_factory=FileLayout)
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    display_name: str = ""
    field_ids: dict[str, FieldId] = field(default_factory=dict)
