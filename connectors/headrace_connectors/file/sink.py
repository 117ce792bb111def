"""FileStreamSinkConnector: each record becomes a line, Java's text of its value, at the end of a file."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from typing import Any

from headrace.api.connector import SinkConnector
from headrace.api.errors import ConnectError
from headrace.api.task import SinkTask, TopicPartition
from headrace.data.batch import SinkBatch
from headrace.data.lines import java_lines
from headrace_connectors.file.config import FileStreamSinkConfig

log = logging.getLogger(__name__)

_STDOUT = 1


class FileStreamSinkTask(SinkTask):
    """Appends to one file, or writes to standard output; several tasks may append to the same file."""

    config_model = FileStreamSinkConfig

    def __init__(self) -> None:
        self._descriptor = _STDOUT

    def start(self, config: FileStreamSinkConfig) -> None:
        """Open the file."""
        self._file = config.file
        self._open()

    def put_batch(self, batch: SinkBatch) -> None:
        """Write a batch by one system call, so that tasks do not mix within lines; all of it or nothing."""
        values = batch.values if batch.compact is None else batch.compact
        data = java_lines(batch.value_schema, values).encode("utf-8", "replace")
        if self._file and os.fstat(self._descriptor).st_nlink == 0:
            log.warning("File %s was deleted: it is made anew", self._file)
            self.stop()
            self._open()
        written = 0
        try:
            while written < len(data):  # more than once for a full pipe, or a disk that has only just room
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as error:
            self._take_back(written)
            raise ConnectError(f"Cannot write to {self._file or 'standard output'}: {error.strerror}") from error

    def _take_back(self, written: int) -> None:
        """Cut off what a put that failed has written, half a line at its end: the batch is delivered again, whole."""
        if not written or self._descriptor == _STDOUT:
            return
        status, end = os.fstat(self._descriptor), os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if stat.S_ISREG(status.st_mode) and status.st_size == end:  # else another task has written behind it
            os.ftruncate(self._descriptor, end - written)

    def _open(self) -> None:
        if not self._file:
            return
        try:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConnectError(f"Couldn't find or create file '{self._file}': {error.strerror}") from error

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything has been handed to the operating system by `put_batch`."""

    def stop(self) -> None:
        """Close the file."""
        if self._descriptor != _STDOUT:
            os.close(self._descriptor)
            self._descriptor = _STDOUT


class FileStreamSinkConnector(SinkConnector):
    """Runs as many tasks as allowed, all appending."""

    config_model = FileStreamSinkConfig
    task_class = FileStreamSinkTask
    java_names = ("org.apache.kafka.connect.file.FileStreamSinkConnector",)

    def start(self, config: FileStreamSinkConfig) -> None:
        """Keep the configuration for the tasks."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """The same for each."""
        return [self._config.originals] * max_tasks

    def alter_offsets(self, config: FileStreamSinkConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Any offset will do: the file is only appended to."""
        return True
