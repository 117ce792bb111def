"""DirectorySourceConnector, which reads the files that appear in a directory.

A hash of a file's path determines the task that reads the file. A task finds new files itself, and reads one file after
another. The source partition is the file. The source offset contains the position in the file, and the file's size and
time of modification. With this offset, a restarted task continues inside a file, and reads a file again if its content
was replaced. A file is moved or deleted after the offset of its last record is committed. Delivery is at least once.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.config_def import ConfigValue
from headrace.api.connector import ExactlyOnceSupport, SourceConnector
from headrace.api.errors import ConnectError, DataError
from headrace.api.retries import Retries, RetryPolicy
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.columns import Values
from headrace.data.headers import Headers
from headrace.data.records import SourceRecord
from headrace.data.schema import STRING_SCHEMA
from headrace_connectors.common.shares import shared_task_configs
from headrace_connectors.file.directory_search import (
    DirectorySearch,
    FileSelection,
    FileState,
    FoundFile,
    partition_of,
    printable,
)
from headrace_connectors.file.directory_source_config import DirectorySourceConfig
from headrace_connectors.file.file_formats import BadRecordError, ParquetReader, RecordReader, text_reader
from headrace_connectors.file.finished_files import FinishedFiles, check_directory
from headrace_connectors.file.record_lines import FileError, RecordLines, TemporaryFileError

logger = logging.getLogger(__name__)

_STEP_S = 0.5
_IDLE_S = 1.0
_LOGGED_ERRORS_MAX = 10
_WARNED_DIRECTORIES_MAX = 100
_PERMANENT_ERRORS = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO)
_CHUNK = 500
_OFFSET_TYPES = {"position": int, "line": int, "errors": int, "complete": bool, "size": int, "modified": int}


class _StoppedError(Exception):
    """The task was stopped while it skipped records that it had already read before its restart."""


class _FileChangedError(Exception):
    """Another program has changed the file while the task was reading it."""


class _Reading:
    """A file that is being read."""

    def __init__(self, found: FoundFile, state: FileState, descriptor: int) -> None:
        self.name = found.name
        self.state = state
        self.descriptor = descriptor
        self.errors = 0 if found.offset is None else int(found.offset["errors"])
        self.partition = partition_of(found.name)
        self.headers: Headers | None = None
        self.reader: RecordReader | None = None

    def check_unchanged(self) -> None:
        """Raise _FileChangedError if the file has changed since it was opened.

        The state of the file is determined when the file is opened, and stored in the source offset. The task does not
        update the state after a change, because the source offset would then say that the new content was read.
        """
        if self.descriptor < 0:
            return
        try:
            state = FileState.of(os.fstat(self.descriptor))
        except OSError as error:
            raise TemporaryFileError(str(error)) from error
        if state != self.state:
            raise _FileChangedError

    def offset(self, *, is_complete: bool) -> dict[str, Any]:
        """Return the source offset after the records that were read. `is_complete` is true at the end of the file."""
        reader = self.reader
        return {
            "position": 0 if reader is None else reader.position,
            "line": 0 if reader is None else reader.line,
            "errors": self.errors,
            "complete": is_complete,
            "size": self.state.size,
            "modified": self.state.modified,
        }

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


class DirectorySourceTask(SourceTask[DirectorySourceConfig]):
    """Finds and reads the task's share of the files in the directory."""

    def __init__(self) -> None:
        self._reading: _Reading | None = None
        self._found: deque[FoundFile] = deque()
        self._start: Mapping[str, Any] | None = None
        """The offset at which the file that is being read was opened."""
        self._search: DirectorySearch | None = None
        self._search_at_s = 0.0
        self._search_started_s = 0.0
        self._uncommitted: dict[str, tuple[FileState, int]] = {}
        """The files that were read to the end, with the number of errors, until their offsets are committed."""
        self._removed: list[str] = []
        """The files that were moved or deleted, until their offsets are removed."""
        self._failure: ConnectError | None = None
        self._is_directory_missing = False
        self._warned_directories: set[str] = set()
        self._retries = Retries(RetryPolicy(1000, logged_every=60))

    def start(self, config: DirectorySourceConfig) -> None:
        """Prepare the search of the directory, which the first poll starts."""
        targets = [each for each in (config.finished_directory, config.error_directory) if each]
        self._selection = FileSelection(
            config.directory, config.patterns, config.ignored_patterns, config.recursive,
            frozenset(map(os.path.realpath, targets)), config.done_marker_suffix, config.settle_ms, config.order,
            (self.context.task_number, self.context.task_count),
        )  # fmt: skip
        self._finished = FinishedFiles(
            config.directory, config.finished_action, config.finished_directory, config.error_directory,
            config.done_marker_suffix,
        )  # fmt: skip

    def poll(self) -> SourceBatch | Sequence[SourceBatch] | None:
        """Return the next records of the current file, or of the next file."""
        if self._failure is not None:
            raise self._failure
        if self._removed:
            return self._removals()
        if self._reading is None and not self._open_next():
            return None
        reading = self._reading
        assert reading is not None
        try:
            batch = self._read(reading)
            self._retries.succeeded()
            return batch
        except TemporaryFileError as error:
            self._retry(reading, str(error))
        except _StoppedError:
            self._close()
        except _FileChangedError:
            logger.warning(
                "File %s changed while it was read; the task reads the file again from the beginning after the file "
                "has not changed for settle.time.ms=%d", self._path(reading), self.config.settle_ms,
            )  # fmt: skip
            self._close()
        return None

    def commit(self) -> None:
        """Move or delete the files whose last offset is committed."""
        names = list(self._uncommitted)
        for first in range(0, len(names), _CHUNK):
            part = names[first : first + _CHUNK]
            for name, offset in zip(part, self._read_offsets(part), strict=True):
                state, _ = self._uncommitted[name]
                if offset is not None and offset.get("complete") and state.is_state_in(offset):
                    self._finish(name, offset)

    def stop(self) -> None:
        """Close the file."""
        self._close()

    # -- finding

    def _open_next(self) -> bool:
        """Open the next file.

        If no file is known, first continue the search or wait. Return False if no file is found.
        """
        if not self._found:
            self._continue_search()
        while self._found:
            if self._open(self._found.popleft()):
                return True
        return False

    def _continue_search(self) -> None:
        now_s = self.context.monotonic()
        if self._search is None:
            if now_s < self._search_at_s:
                self.context.wait(min(_IDLE_S, self._search_at_s - now_s))
                return
            self._search = DirectorySearch(
                self._selection, self._read_offsets, self._is_in_progress, self._finish, self._warn_of_directory
            )
            self._search_started_s = now_s
        deadline_s = now_s + _STEP_S
        try:
            if not self._search.step(lambda: self.context.monotonic() >= deadline_s):
                return
        except OSError as error:
            self._search = None
            self._search_at_s = now_s + self.config.poll_interval_ms / 1000
            if not self._is_directory_missing:
                logger.warning("Directory %s cannot be listed, retrying: %s", self.config.directory, error.strerror)
            self._is_directory_missing = True
            return
        self._is_directory_missing = False
        search, self._search = self._search, None
        self._found.extend(search.files())
        now_s = self.context.monotonic()
        pause_s = max(self.config.poll_interval_ms / 1000, 10 * (now_s - self._search_started_s))
        self._search_at_s = now_s if search.is_truncated else now_s + pause_s

    def _read_offsets(self, names: Sequence[str]) -> Sequence[Mapping[str, Any] | None]:
        return self.context.offsets.read_all(map(partition_of, names))

    def _is_in_progress(self, name: str, state: FileState) -> bool:
        read = self._uncommitted.get(name)
        return read is not None and read[0] == state

    def _finish(self, name: str, offset: Mapping[str, Any]) -> None:
        """Move or delete a file whose last offset is committed. If this fails, the next poll raises the error."""
        state = FileState(offset["size"], offset["modified"])
        if self._is_in_progress(name, state):
            del self._uncommitted[name]
        try:
            if self._finished.finish(name, state, int(offset.get("errors") or 0)):
                self._removed.append(name)
        except ConnectError as error:
            logger.error("%s", error)  # also if there is no next poll
            self._failure = error

    def _removals(self) -> list[SourceBatch]:
        """Return batches that delete the source offsets of files that no longer exist."""
        names, self._removed = self._removed, []
        topic = self.config.topic
        return [SourceBatch(topic, [], source_partition=partition_of(name), source_offset=None) for name in names]

    # -- reading

    def _open(self, found: FoundFile) -> bool:
        """Open a file. Return False if the file must not be read now. A later search then finds it again."""
        path = os.path.join(self.config.directory, found.name)
        self._start = found.offset
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.ESTALE:
                return False
            self._reading = _Reading(found, found.state, -1)
            self._failed_open = error
            return True
        status = os.fstat(descriptor)
        state = FileState.of(status)
        if not stat.S_ISREG(status.st_mode) or state != found.state or not self._selection.is_settled(status):
            os.close(descriptor)
            return False
        self._reading = reading = _Reading(found, state, descriptor)
        if self.config.file_name_header is not None:
            text = found.name.encode("utf-8", "backslashreplace").decode()
            reading.headers = Headers().add(self.config.file_name_header, text, STRING_SCHEMA)
        return True

    def _open_reader(self, reading: _Reading) -> RecordReader:
        if reading.descriptor < 0:
            error = self._failed_open
            if error.errno in _PERMANENT_ERRORS:
                raise FileError(f"the file cannot be opened: {error.strerror}") from error
            raise TemporaryFileError(str(error)) from error
        config = self.config
        position, line = (0, 0) if self._start is None else (self._start["position"], self._start["line"])
        if config.format == "parquet":
            return ParquetReader(reading.descriptor, position)
        is_gzip = reading.name.endswith(".gz")
        lines = RecordLines(reading.descriptor, is_gzip=is_gzip, limit=config.record_max_bytes)
        reader = text_reader(lines, config)
        if position > lines.position and not lines.skip_to(position, line, lambda: self.context.wait(0)):
            raise _StoppedError
        logger.debug("File %s: reading from byte %d", self._path(reading), position)
        return reader

    def _read(self, reading: _Reading) -> SourceBatch:
        """Return the next records. Raises _FileChangedError if they may belong to two versions of the file."""
        try:
            if reading.reader is None:
                reading.reader = self._open_reader(reading)
            values = reading.reader.read(self.config.batch_size)
        except BadRecordError as error:
            reading.check_unchanged()
            return self._skip_record(reading, error)
        except FileError as error:
            reading.check_unchanged()
            return self._skip_rest(reading, error)
        reading.check_unchanged()
        return self._batch(reading, values, is_complete=reading.reader.is_at_end)

    def _batch(self, reading: _Reading, values: Values, *, is_complete: bool) -> SourceBatch:
        """Return a batch of `values` with the source offset after them. Close the file if `is_complete` is true."""
        batch = SourceBatch(
            self.config.topic, values,
            value_schema=None if reading.reader is None else reading.reader.schema,
            timestamps=time.time_ns() // 1_000_000,
            headers=None if reading.headers is None else [reading.headers] * len(values),
            source_partition=reading.partition,
            source_offset=reading.offset(is_complete=is_complete),
        )  # fmt: skip
        if is_complete:
            self._uncommitted[reading.name] = reading.state, reading.errors
            if reading.errors:
                path = self._path(reading)
                logger.error("File %s: skipped %d invalid records", path, reading.errors)
            self._close()
        return batch

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    # -- errors

    def _skip_record(self, reading: _Reading, error: BadRecordError) -> SourceBatch:
        """Skip an invalid record if errors.tolerance=all. Otherwise, raise DataError."""
        reader = reading.reader
        assert reader is not None
        text = f"File {self._path(reading)}, {reader.unit} {error.line}: {error}"
        if not self.context.tolerates_errors:
            raise DataError(f"{text}. Correct the file, or set errors.tolerance=all to skip such records") from error
        reading.errors += 1
        if reading.errors <= _LOGGED_ERRORS_MAX:
            logger.error("%s. Skipping the record", text)
        self._report(reading, text)
        return self._batch(reading, [], is_complete=False)

    def _skip_rest(self, reading: _Reading, error: FileError) -> SourceBatch:
        """Skip the remaining part of a damaged file if errors.tolerance=all. Otherwise, raise DataError."""
        text = f"File {self._path(reading)}: {error}"
        if not self.context.tolerates_errors:
            raise DataError(f"{text}. Correct or remove the file, or set errors.tolerance=all to skip it") from error
        reading.errors += 1
        logger.error("%s. Skipping the remaining part of the file", text)
        self._report(reading, text)
        return self._batch(reading, [], is_complete=True)

    def _report(self, reading: _Reading, text: str) -> None:
        """Report a skipped record for the metrics and the dead letter queue.

        The value of the reported record is `text`, which describes the error.
        """
        record = SourceRecord(
            topic=self.config.topic,
            value=text,
            value_schema=STRING_SCHEMA,
            source_partition=reading.partition,
            source_offset=reading.offset(is_complete=False),
        )
        self.context.report_skipped(record, DataError(text))

    def _retry(self, reading: _Reading, reason: str) -> None:
        """Log `reason`, close the file and wait. The next poll reopens the file and continues at the next record."""
        retry = self._retries.failed(f"File {self._path(reading)} cannot be read: {reason}")
        retry.log(logger)
        self._close()
        offset = self._start if reading.reader is None else reading.offset(is_complete=False)
        self._found.appendleft(FoundFile(None, reading.name, reading.state, offset))
        self.context.wait(retry.pause_s)

    def _warn_of_directory(self, name: str, error: OSError) -> None:
        if name not in self._warned_directories and len(self._warned_directories) < _WARNED_DIRECTORIES_MAX:
            self._warned_directories.add(name)
            path = printable(os.path.join(self.config.directory, name))
            logger.warning("Directory %s cannot be listed, ignoring its files: %s", path, error.strerror)

    def _path(self, reading: _Reading) -> str:
        return printable(os.path.join(self.config.directory, reading.name))


class DirectorySourceConnector(SourceConnector[DirectorySourceConfig]):
    """Starts `tasks.max` tasks. Each task reads a share of the files."""

    task_class = DirectorySourceTask

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the modules that all tasks need, so that the tasks share the memory of these modules."""
        more = ["headrace_connectors.common.parquet_rows"] if props.get("format") == "parquet" else []
        return [__name__, *more]

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the connector's configuration for each of `max_tasks` tasks."""
        return shared_task_configs(self.config.originals, "headrace.file.share", max_tasks)

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Check that the directory exists, that files can be moved if necessary, and that PyArrow is installed.

        Adds errors to `values`.
        """
        directory = props.get("directory", "")
        if directory and not values["directory"].errors:
            needs_write = props.get("finished.action", "keep") != "keep"
            if not os.path.isdir(directory):
                values["directory"].errors.append(f"Directory {directory} does not exist, or is not a directory")
            elif not os.access(directory, os.R_OK | os.X_OK):
                values["directory"].errors.append(f"Directory {directory} cannot be read: permission denied")
            elif needs_write and not os.access(directory, os.W_OK):
                values["directory"].errors.append(
                    f"Directory {directory} is not writable, but finished.action={props['finished.action']} requires "
                    "write permission"
                )
        needs_target = {
            "finished.directory": values["finished.action"].value == "move",
            "error.directory": props.get("errors.tolerance", "none").lower() == "all",
        }
        for name, is_needed in needs_target.items():
            path = values[name].value
            if path and is_needed and not values[name].errors:
                try:
                    check_directory(path)
                except OSError as error:
                    values[name].errors.append(f"Files cannot be moved to directory {path}: {error.strerror}")
        if props.get("format") == "parquet":
            import pyarrow  # noqa: F401 - an error names the package to install

    def exactly_once_support(self, config: DirectorySourceConfig) -> ExactlyOnceSupport:
        """Return SUPPORTED, because a restarted task continues at the position in the source offset."""
        return ExactlyOnceSupport.SUPPORTED

    def alter_offsets(self, config: DirectorySourceConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Validate source partitions and offsets that a user wants to store. Raises ConnectError if any is invalid."""
        for partition, offset in offsets.items():
            if [name for name, _ in partition] not in (["file"], ["file.bytes"]):
                raise ConnectError(f"A source partition must have only the field 'file', but found {dict(partition)}")
            if offset is None:
                continue
            if set(offset) != set(_OFFSET_TYPES) or any(
                type(offset[name]) is not _OFFSET_TYPES[name] for name in offset
            ):
                wanted = {name: type_.__name__ for name, type_ in _OFFSET_TYPES.items()}
                raise ConnectError(f"A source offset must have the fields {wanted}, but found {dict(offset)}")
        return True
