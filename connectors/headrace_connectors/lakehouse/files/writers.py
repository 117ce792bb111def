"""Writes the Parquet files of a Spark task, one or more for each table and partition.

Rows are buffered as Arrow record batches and become row groups. A file is opened when its first row group is written,
so rows of many partitions cost memory, but no open files. One record batch may exceed each limit:

- A task that holds more than `memory_bytes` of rows writes row groups, the largest first.
- The buffers of uploads to S3 may use half of this memory. If they need more, the file with the largest is completed.
- At most `open_files_max` files are open. If another file must be opened, the least recently used one is completed.
- A file that has reached `file_size_bytes` is completed.
- A file of a sorted table contains one sorted run. It is completed as soon as its rows are written.

No commit mentions a file until the driver has received its descriptor. So readers never see the files of a task that
fails. The task deletes them if it can.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.parquet_file import ParquetFile, delete_unused
from headrace_connectors.lakehouse.files.partition_paths import partition_directory
from headrace_connectors.lakehouse.files.partitioning import Partition, split_by_partition
from headrace_connectors.lakehouse.files.row_buffer import RowBuffer
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.sorting import sorted_slices
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.files.table_target import TableTarget

_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
"""The size of a row group before encoding. Readers assign row groups to tasks, and load the columns of one at once."""
_SPLIT_ROWS, _SPLIT_BYTES = 1 << 16, 16 << 20
"""A partitioned table's rows are split by partition when there are so many, because splitting a few rows is slow."""
_SORTED_RATIO = 3
"""A sorted run is as large as this many times `file_size_bytes`, because encoding makes it smaller."""

_FileKey = tuple[str, Partition]


class FileWriters:
    """The writers of one Spark task. Use it as a context manager, on one thread.

    `name` becomes part of the files' names. It must be unique among all tasks and attempts of all connectors, and may
    contain only letters, digits and hyphens. If the `with` block fails, or ends before `finish`, the files are deleted.
    """

    def __init__(self, store: FileStore, settings: WriterSettings, name: str) -> None:
        self._store = store
        self._settings = settings
        self._name = name
        self._count = 0
        self._unsplit: dict[str, _Buffer] = {}
        """Rows of partitioned tables that are not split by partition yet."""
        self._buffers: dict[_FileKey, _Buffer] = {}
        self._open: OrderedDict[_FileKey, ParquetFile] = OrderedDict()
        """The open files, the least recently used first."""
        self._bytes = 0
        self._written: list[tuple[str, DataFile]] = []
        """Completed files, with their locations."""
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None or not self._is_finished:
            self._abandon()

    def write(self, table: TableTarget, schema: pa.Schema, rows: pa.RecordBatch) -> None:
        """Add rows to the files of a table. `schema` has the columns of `rows` with the types for Parquet.

        Raises OSError if a file cannot be written, and ConnectError if the rows cannot be partitioned.
        """
        if rows.schema is not schema and not rows.schema.equals(schema):
            rows = rows.cast(schema)
        if table.layout.partition_fields:
            self._append_unsplit(table, schema, rows)
        else:
            self._append((table.name, ()), table, schema, rows)
        if self._is_over_limit():
            self._split_all()
        while self._buffers and self._is_over_limit():
            self._flush(max(self._buffers.values(), key=lambda buffer: buffer.rows.size))

    def finish(self) -> list[DataFile]:
        """Complete all files and return their descriptors, in the order in which the files were completed."""
        self._split_all()
        for buffer in list(self._buffers.values()):
            self._flush(buffer)
            self._complete(buffer.key)
        while self._open:
            self._complete(next(iter(self._open)))
        self._is_finished = True
        return [file for _, file in self._written]

    def _is_over_limit(self) -> bool:
        return self._bytes + self._upload_bytes() > self._settings.memory_bytes

    def _append_unsplit(self, table: TableTarget, schema: pa.Schema, rows: pa.RecordBatch) -> None:
        """Buffer rows of a partitioned table until there are enough, because splitting few rows is slow."""
        buffer = self._unsplit.get(table.name)
        if buffer is not None and not buffer.has_schema(schema):
            self._split(buffer)
            buffer = None
        if buffer is None:
            buffer = self._unsplit[table.name] = _Buffer((table.name, ()), table, schema)
        self._add(buffer, rows)
        if buffer.rows.count >= _SPLIT_ROWS or buffer.rows.size >= _SPLIT_BYTES:
            self._split(buffer)

    def _split_all(self) -> None:
        for buffer in list(self._unsplit.values()):
            self._split(buffer)

    def _split(self, buffer: _Buffer) -> None:
        """Move unsplit rows to the buffers of their partitions."""
        table = buffer.table
        del self._unsplit[table.name]
        self._bytes -= buffer.rows.size
        for rows in buffer.rows.to_table(buffer.schema).combine_chunks().to_batches():
            for partition, part in _split(table, rows):
                self._append((table.name, partition), table, buffer.schema, part)

    def _append(self, key: _FileKey, table: TableTarget, schema: pa.Schema, rows: pa.RecordBatch) -> None:
        """Add rows to the buffer of their partition, and write the buffer if it is large enough for a row group."""
        buffer = self._buffers.get(key)
        if buffer is not None and not buffer.has_schema(schema):
            self._flush(buffer)
            buffer = None
        if buffer is None:
            buffer = self._buffers[key] = _Buffer(key, table, schema)
        self._add(buffer, rows)
        if buffer.rows.count >= self._group_rows(table) or buffer.rows.size >= self._group_bytes(table):
            self._flush(buffer)

    def _add(self, buffer: _Buffer, rows: pa.RecordBatch) -> None:
        before = buffer.rows.size
        buffer.rows.append(rows)
        self._bytes += buffer.rows.size - before

    def _group_rows(self, table: TableTarget) -> float:
        return float("inf") if table.layout.sort_fields else _ROW_GROUP_ROWS

    def _group_bytes(self, table: TableTarget) -> int:
        size = self._settings.file_size_bytes
        return size * _SORTED_RATIO if table.layout.sort_fields else min(size, _ROW_GROUP_BYTES)

    def _flush(self, buffer: _Buffer) -> None:
        """Write the buffered rows to the buffer's file, and complete the file if it has reached its size."""
        del self._buffers[buffer.key]
        self._bytes -= buffer.rows.size
        if not buffer.rows.count:
            return
        file = self._open.get(buffer.key)
        if file is not None and not buffer.has_schema(file.schema):
            self._complete(buffer.key)
            file = None
        file = file or self._open_file(buffer)
        self._open.move_to_end(buffer.key)
        rows = buffer.rows.to_table(buffer.schema)
        sort_fields = buffer.table.layout.sort_fields
        for run in sorted_slices(rows, sort_fields, _ROW_GROUP_ROWS) if sort_fields else (rows,):
            file.write(run)
        if sort_fields or file.is_large(self._settings.file_size_bytes):
            self._complete(buffer.key)
        while len(self._open) > 1 and 2 * self._upload_bytes() > self._settings.memory_bytes:
            self._complete(max(self._open, key=lambda key: self._open[key].upload_bytes))

    def _open_file(self, buffer: _Buffer) -> ParquetFile:
        while len(self._open) >= self._settings.open_files_max:
            self._complete(next(iter(self._open)))
        directory = partition_directory(buffer.table.layout.partition_fields, buffer.key[1])
        path = f"{directory}part-{self._name}-{self._count:05d}.parquet"
        self._count += 1
        assert buffer.table.location is not None
        file = ParquetFile(self._store, buffer.table.location, path, buffer.schema, self._settings)
        self._open[buffer.key] = file
        return file

    def _upload_bytes(self) -> int:
        return sum(file.upload_bytes for file in self._open.values())

    def _complete(self, key: _FileKey) -> None:
        """Complete the open file of a table's partition, if there is one."""
        file = self._open.pop(key, None)
        if file is not None:
            self._written.append((file.location, file.complete(*key)))

    def _abandon(self) -> None:
        for file in self._open.values():
            file.abandon()
        for location, data_file in self._written:
            delete_unused(self._store, location, data_file.path)
        self._open.clear()
        self._buffers.clear()
        self._written.clear()


def _split(table: TableTarget, rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Split rows by partition. Raises ConnectError for values and columns that the caller should have rejected."""
    try:
        yield from split_by_partition(rows, table.layout.partition_fields)
    except (KeyError, ValueError, OverflowError) as error:
        raise ConnectError(
            f"table {table.name}: rows cannot be partitioned: {error}; check lakehouse.partition.by, and that dates and"
            " timestamps of partition columns have the years 1 to 9999"
        ) from error


@dataclass(slots=True)
class _Buffer:
    """Rows of one partition of a table that are not yet written."""

    key: _FileKey
    table: TableTarget
    schema: pa.Schema
    rows: RowBuffer = field(default_factory=RowBuffer)

    def has_schema(self, schema: pa.Schema) -> bool:
        """Whether rows with this schema can be added."""
        return self.schema is schema or bool(self.schema.equals(schema))
