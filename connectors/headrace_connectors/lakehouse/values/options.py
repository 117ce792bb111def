"""How records become rows: which columns a table has besides the columns of the values. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_connectors.lakehouse.column_types import STRING, ColumnType, TableColumn, widened

METADATA_COLUMNS = (
    TableColumn("_kafka_topic", STRING),
    TableColumn("_kafka_partition", ColumnType("int32")),
    TableColumn("_kafka_offset", ColumnType("int64")),
    TableColumn("_kafka_timestamp", ColumnType("timestamp")),
)
METADATA_NAMES = tuple(column.name for column in METADATA_COLUMNS)
KEY_COLUMN = "_kafka_key"
"""The column of a whole record key."""
KEY_FIELD_PREFIX = "_key_"
"""The column of a field of a record key has this prefix and the field's name."""
HEADERS_TYPE = ColumnType(
    "array",
    element=ColumnType("struct", fields=(TableColumn("key", STRING), TableColumn("value", ColumnType("bytes")))),
)

KeyColumns = Literal["none", "key", "fields"]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The columns of rows. Picklable.

    `key_columns` determines whether the record's key is stored: in one column ("key"), or with one column for each
    field of a struct or map ("fields"). `headers_column` is the name of the column of headers, or None. `declared` has
    the columns of values without schemas, or is None if the configuration does not declare them. If `widens_integers`
    is true, the table's format has no integers of 8 and 16 bits, and stores them as int.
    """

    metadata_columns: bool = True
    key_columns: KeyColumns = "none"
    headers_column: str | None = None
    declared: tuple[TableColumn, ...] | None = None
    widens_integers: bool = False

    @property
    def fixed_columns(self) -> tuple[TableColumn, ...]:
        """The columns of metadata and headers, which are the same for all records."""
        metadata = METADATA_COLUMNS if self.metadata_columns else ()
        headers = () if self.headers_column is None else (TableColumn(self.headers_column, HEADERS_TYPE),)
        return (*metadata, *headers)

    def stored(self, columns: tuple[TableColumn, ...]) -> tuple[TableColumn, ...]:
        """Return the columns as the table stores them."""
        return widened(columns) if self.widens_integers else columns

    def is_key_column(self, name: str) -> bool:
        """Whether the column of this name belongs to the record's key."""
        if self.key_columns == "none":
            return False
        return name == KEY_COLUMN or (self.key_columns == "fields" and name.startswith(KEY_FIELD_PREFIX))

    def is_value_column(self, name: str) -> bool:
        """Whether the column of this name belongs to the record's value."""
        is_metadata = self.metadata_columns and name in METADATA_NAMES
        return not is_metadata and name != self.headers_column and not self.is_key_column(name)
