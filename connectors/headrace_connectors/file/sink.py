"""FileStreamSinkConnector, which appends each record to a file as a line, in the format of Java's `toString`."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.connector import SinkConnector
from headrace.api.errors import ConnectError
from headrace.api.task import SinkTask, TopicPartition
from headrace.data.batch import SinkBatch
from headrace.data.lines import java_lines
from headrace.data.sink_records import SinkRecords
from headrace_connectors.file.sink_config import FileStreamSinkConfig

logger = logging.getLogger(__name__)

_STDOUT = 1


class FileStreamSinkTask(SinkTask[FileStreamSinkConfig]):
    """Appends records to one file, or writes them to standard output. Several tasks may append to the same file."""

    def __init__(self) -> None:
        self._descriptor = _STDOUT

    def start(self, config: FileStreamSinkConfig) -> None:
        """Open the file."""
        self._file = config.file
        self._open()

    def put(self, records: SinkRecords) -> None:
        """Append all records to the file, or none if an error occurs.

        All records are passed to one system call, so that lines of different tasks do not interleave.
        """
        if not len(records):
            return
        data = "".join(map(_lines, records.batches)).encode("utf-8", "replace")
        if self._file and os.fstat(self._descriptor).st_nlink == 0:
            logger.warning("File %s was deleted, creating it again", self._file)
            self.stop()
            self._open()
        written = 0
        try:
            while written < len(data):  # a full pipe or an almost full disk accepts only part of the data
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as error:
            self._undo_partial_write(written)
            target = f"file {self._file}" if self._file else "standard output"
            raise ConnectError(f"Cannot write to {target}: {error.strerror}") from error

    def _undo_partial_write(self, written: int) -> None:
        """Remove the last `written` bytes of the file, which a failed `put` has appended.

        The records of this `put` are redelivered. If another task has appended lines in the meantime, the bytes stay in
        the file.
        """
        if not written or self._descriptor == _STDOUT:
            return
        status, end = os.fstat(self._descriptor), os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if stat.S_ISREG(status.st_mode) and status.st_size == end:  # no other task has appended lines meanwhile
            os.ftruncate(self._descriptor, end - written)

    def _open(self) -> None:
        if not self._file:
            return
        try:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConnectError(f"Couldn't find or create file '{self._file}': {error.strerror}") from error

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing, because `put` has already passed all data to the operating system."""

    def stop(self) -> None:
        """Close the file."""
        if self._descriptor != _STDOUT:
            os.close(self._descriptor)
            self._descriptor = _STDOUT


def _lines(batch: SinkBatch) -> str:
    return java_lines(batch.value_schema, batch.values if batch.compact is None else batch.compact)


class FileStreamSinkConnector(SinkConnector[FileStreamSinkConfig]):
    """Starts `tasks.max` tasks that all append to the same file."""

    task_class = FileStreamSinkTask
    java_names = ("org.apache.kafka.connect.file.FileStreamSinkConnector",)
    java_task_class = "org.apache.kafka.connect.file.FileStreamSinkTask"

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the name of this module.

        The platform imports this module once, and all task processes inherit the imported module.
        """
        return [__name__]

    def alter_offsets(self, config: FileStreamSinkConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Return True for any offsets, because the task stores no offsets in the file."""
        return True
