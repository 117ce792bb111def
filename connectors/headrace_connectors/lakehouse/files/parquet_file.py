"""One Parquet file while it is written. The footer becomes part of the file's descriptor."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.encodings import dictionary_columns
from headrace_connectors.lakehouse.files.partitioning import Partition
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.stores import SMALL_FILE_BYTES, UPLOAD_BUFFER_BYTES, FileStore
from headrace_connectors.lakehouse.table_uri import TableUri

logger = logging.getLogger(__name__)


class ParquetFile:
    """A Parquet file to which row groups are appended."""

    def __init__(self, store: FileStore, location: str, path: str, schema: pa.Schema, settings: WriterSettings) -> None:
        self.location = location
        self.schema = schema
        self._is_s3 = TableUri.parse(location).is_s3
        self._store = store
        self._path = path
        self._rows = 0
        self._group_size = 0
        self._footers: list[Any] = []
        self._stream = store.open_output(location, path)
        self._writer: pq.ParquetWriter | None = None
        try:
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                version="2.6",
                compression=settings.compression,
                compression_level=settings.compression_level,
                coerce_timestamps="us",
                store_schema=False,
                use_dictionary=dictionary_columns(schema) or False,
                metadata_collector=self._footers,
            )
        except BaseException:
            self.abandon()
            raise

    def write(self, rows: pa.Table) -> None:
        """Append a row group."""
        assert self._writer is not None
        self._stream.flush()  # waits for uploads: if S3 is slower than the task, only one row group is in memory
        before = self._stream.tell()
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._group_size = self._stream.tell() - before
        self._rows += rows.num_rows

    @property
    def upload_bytes(self) -> int:
        """The memory that the open file needs besides its rows, because the end of a file in S3 is not uploaded yet."""
        size = int(self._stream.tell()) if self._is_s3 else 0
        return size if size <= SMALL_FILE_BYTES else UPLOAD_BUFFER_BYTES

    def is_large(self, file_size_bytes: int) -> bool:
        """Whether another row group would make the size differ more from `file_size_bytes` than it does now."""
        return bool(self._stream.tell() + self._group_size / 2 >= file_size_bytes)

    def complete(self, table: str, partition: Partition) -> DataFile:
        """Write the footer and return the file's descriptor."""
        assert self._writer is not None
        try:
            self._writer.close()
            size = self._stream.tell()
            self._stream.close()
        except BaseException:
            self.abandon()
            raise
        footer = pa.BufferOutputStream()
        self._footers[0].write_metadata_file(footer)
        return DataFile(table, self._path, size, self._rows, footer.getvalue().to_pybytes(), partition)

    def abandon(self) -> None:
        """Close and delete the file. Errors are logged, because a task that fails must report its own error."""
        if self._writer is not None:
            self._writer.is_open = False  # so that it does not write a footer when it is deleted
            self._writer = None
        try:
            self._stream.close()
        except (OSError, pa.ArrowException) as error:
            logger.warning("File %s/%s: cannot be closed (%s)", self.location, self._path, error)
        delete_unused(self._store, self.location, self._path)


def delete_unused(store: FileStore, location: str, path: str) -> None:
    """Delete a file that no commit mentions. Errors are logged, because readers never see the file."""
    try:
        store.delete(location, path)
    except OSError as error:
        logger.warning(
            "File %s/%s: cannot be deleted (%s). No table contains it; delete it to free its space",
            location,
            path,
            error,
        )
