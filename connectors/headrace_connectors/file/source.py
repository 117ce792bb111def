"""FileStreamSourceConnector, whose single task reads a growing file and sends each line as a record.

The source partition `{"filename": ...}` and the source offset `{"position": ...}` have the format
of Apache Kafka's connector, but the position counts bytes. Apache Kafka's connector counts
characters, so it resumes too early in files with non-ASCII text.

The task follows log rotation. If another process has truncated the file (copytruncate), or has renamed it and created a
new file, the task reads the open file to its end, and then continues at the start of the file. A file that is truncated
and grows beyond the old size within a tenth of a second looks like a file that has only grown.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.connector import ExactlyOnceSupport, SourceConnector
from headrace.api.errors import ConnectError
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.columns import Values
from headrace.data.schema import STRING_SCHEMA
from headrace_connectors.file.lines import LineSplitter
from headrace_connectors.file.source_config import FileStreamSourceConfig

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1024 * 1024
"""Each read releases the GIL, and then waits for the event loop's thread, so the task reads several chunks at once."""
WAIT_S = 0.1
MISSING_FILE_WAIT_S = 0.5
_STDIN = 0
_TRUNCATED, _REPLACED, _DELETED = "truncated", "replaced", "deleted"
"""How another process has changed the file that the task reads."""


class FileStreamSourceTask(SourceTask[FileStreamSourceConfig]):
    """Reads the lines of one file or of standard input."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def start(self, config: FileStreamSourceConfig) -> None:
        """Read the committed source offset. The first poll opens the file."""
        self._partition = {"filename": config.file}
        self._warned_missing = False
        self._last_change = ""
        self._last_lines: Values | None = None
        """The lines at the end of a file that was truncated or replaced, which `poll` has not returned yet."""
        offset = self.context.offsets.read(self._partition) if config.file else None
        self._splitter = LineSplitter(_stored_position(config.file, offset))

    def poll(self) -> SourceBatch | None:
        """Return the available lines, or None after a short wait if there are none."""
        if not self._splitter.has_lines:
            self._read_more()
        if self._last_lines is not None:  # an empty batch also commits the offset 0 of the new file
            lines, self._last_lines = self._last_lines, None
        elif self._splitter.has_lines:
            lines = self._splitter.next_lines(self.config.batch_size)
        else:
            return None
        return SourceBatch(
            self.config.topic,
            lines,
            value_schema=STRING_SCHEMA,
            timestamps=time.time_ns() // 1_000_000,
            source_partition=self._partition,
            source_offset={"position": self._splitter.position},
        )

    def stop(self) -> None:
        """Close the file."""
        if self._descriptor not in (None, _STDIN):
            os.close(self._descriptor)
        self._descriptor = None

    def _read_more(self) -> None:
        if self._descriptor is None and not self._open():
            return
        block = self._read_block()
        if block:
            self._splitter.feed(block)
        elif self.config.file:
            self._follow_file(self.config.file)

    def _read_block(self) -> bytes:
        assert self._descriptor is not None
        if self._descriptor == _STDIN and not select.select([_STDIN], [], [], WAIT_S)[0]:
            return b""
        try:
            block = os.read(self._descriptor, BLOCK_BYTES)
        except OSError as error:  # for example, a directory
            raise ConnectError(f"Cannot read file {self.config.file or 'stdin'}: {error.strerror}") from error
        if not block and self._descriptor == _STDIN:
            self.context.wait(WAIT_S)
        return block

    def _follow_file(self, file: str) -> None:
        """Continue at the start of the file if another process has truncated or replaced it. Otherwise, wait.

        The task calls this method whenever it has read the open file to the end.
        """
        change = self._find_change(file)
        is_new = change != self._last_change
        self._last_change = change
        if change == _TRUNCATED or (change == _REPLACED and not is_new):
            self._restart_file(file, change)
            return
        if change == _DELETED and is_new:
            logger.info("File %s was deleted or renamed: reading the open file until a new file has this name", file)
        # If the file was replaced, wait once, because a process may still write to the renamed file.
        self.context.wait(WAIT_S)

    def _find_change(self, file: str) -> str:
        """Return how another process has changed the file since the task opened it, or an empty string."""
        assert self._descriptor is not None
        opened = os.fstat(self._descriptor)
        if not stat.S_ISREG(opened.st_mode):
            return ""
        try:
            if not os.path.samestat(opened, os.stat(file)):
                return _REPLACED
        except OSError:
            return _DELETED
        return _TRUNCATED if opened.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR) else ""

    def _restart_file(self, file: str, change: str) -> None:
        """First end the last line of the old file, which may be unterminated. Then read the file from its start."""
        assert self._descriptor is not None
        logger.info("File %s was %s: continuing at byte 0", file, change)
        splitter, self._splitter = self._splitter, LineSplitter()
        self._last_change = ""
        if splitter.partial_bytes:
            splitter.feed(b"\n")
        self._last_lines = splitter.next_lines(1) if splitter.has_lines else []
        if change == _TRUNCATED:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        else:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        file = self.config.file
        if not file:
            self._descriptor = _STDIN
            return True
        try:
            self._descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            if not self._warned_missing:
                self._warned_missing = True
                logger.warning("Couldn't find file %s, waiting for it to be created", file)
            self.context.wait(MISSING_FILE_WAIT_S)
            return False
        except OSError as error:
            raise ConnectError(f"Cannot read file {file}: {error.strerror}") from error
        size = os.fstat(self._descriptor).st_size
        if self._splitter.position > size:
            logger.info(
                "File %s has only %d bytes, but the stored offset is %d, so the file was truncated or replaced: "
                "continuing at byte 0",
                file, size, self._splitter.position,
            )  # fmt: skip
            self._splitter = LineSplitter()
        os.lseek(self._descriptor, self._splitter.position, os.SEEK_SET)
        logger.info("File %s: reading from byte %d", file, self._splitter.position)
        return True


class FileStreamSourceConnector(SourceConnector[FileStreamSourceConfig]):
    """Starts one task regardless of tasks.max, because several tasks could not keep the lines in order."""

    task_class = FileStreamSourceTask
    java_names = ("org.apache.kafka.connect.file.FileStreamSourceConnector",)
    java_task_class = "org.apache.kafka.connect.file.FileStreamSourceTask"

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the name of this module.

        The platform imports this module once, and all task processes inherit the imported module.
        """
        return [__name__]

    def exactly_once_support(self, config: FileStreamSourceConfig) -> ExactlyOnceSupport:
        """Return SUPPORTED for a file, which can be re-read from an offset, and UNSUPPORTED for standard input."""
        return ExactlyOnceSupport.SUPPORTED if config.file else ExactlyOnceSupport.UNSUPPORTED

    def alter_offsets(self, config: FileStreamSourceConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Validate the source partitions and offsets that a user wants to store.

        Raises ConnectError if a source partition or offset is invalid.
        """
        if not config.file:
            raise ConnectError("Offsets cannot be modified if the 'file' configuration is unspecified (standard input)")
        for partition, offset in offsets.items():
            if [name for name, _ in partition] != ["filename"]:
                raise ConnectError(f"A source partition must have only the key 'filename', but found {dict(partition)}")
            if offset is not None:
                _position_in(offset)
        return True


def _stored_position(file: str | None, offset: Mapping[str, Any] | None) -> int:
    if offset is None:
        return 0
    try:
        return _position_in(offset)
    except ConnectError as error:
        raise ConnectError(f"The stored offset of file {file} is invalid: {error}") from None


def _position_in(offset: Mapping[str, Any]) -> int:
    position = offset.get("position")
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ConnectError(f"A source offset must be {{'position': n}} with n in bytes, but found {dict(offset)}")
    return position
