"""FileStreamSourceConnector: one task that turns the lines of a file, as it grows, into records.

The offset is the number of bytes read, in Apache's shape (`{"filename": …}` to `{"position": …}`); Apache counts
characters, which resumes too early in files that are not ASCII.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Mapping
from typing import Any

from headrace.api.connector import ExactlyOnceSupport, SourceConnector
from headrace.api.errors import ConnectError
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.schema import STRING_SCHEMA
from headrace_connectors.file.config import FileStreamSourceConfig
from headrace_connectors.file.lines import LineCutter

log = logging.getLogger(__name__)

BLOCK_BYTES = 128 * 1024  # what comes of a block stays in the processor's cache
WAIT_S = 0.1
MISSING_FILE_WAIT_S = 0.5
_STDIN = 0


class FileStreamSourceTask(SourceTask):
    """Reads one file, or standard input."""

    config_model = FileStreamSourceConfig

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._descriptor: int | None = None

    def start(self, config: FileStreamSourceConfig) -> None:
        """Find out where to go on; the file is opened by the first poll."""
        self._config = config
        self._partition = {"filename": config.file}
        self._said_missing = False
        self._said_changed = ""
        offset = self.context.offsets.read(self._partition) if config.file else None
        self._cutter = LineCutter(_position_of(config.file, offset))

    def poll(self) -> SourceBatch | None:
        """Lines that are there; None after a short wait when there are none."""
        cutter = self._cutter
        if not cutter.has_lines and not self._read_more():
            return None
        lines = cutter.take(self._config.batch_size)
        return SourceBatch(
            self._config.topic,
            lines,
            value_schema=STRING_SCHEMA,
            timestamps=time.time_ns() // 1_000_000,
            source_partition=self._partition,
            source_offset={"position": cutter.position},
        )

    def wake_up(self) -> None:
        """End a wait."""
        self._stopping.set()

    def stop(self) -> None:
        """Close the file."""
        if self._descriptor not in (None, _STDIN):
            os.close(self._descriptor)
        self._descriptor = None

    def _read_more(self) -> bool:
        if self._descriptor is None and not self._open():
            return False
        block = self._read_block()
        if block:
            self._cutter.feed(block)
        elif self._config.file:
            self._look_at(self._config.file)
            self._stopping.wait(WAIT_S)
        return self._cutter.has_lines

    def _read_block(self) -> bytes:
        assert self._descriptor is not None
        if self._descriptor == _STDIN and not select.select([_STDIN], [], [], WAIT_S)[0]:
            return b""
        block = os.read(self._descriptor, BLOCK_BYTES)
        if not block and self._descriptor == _STDIN:
            self._stopping.wait(WAIT_S)
        return block

    def _look_at(self, file: str) -> None:
        """Nothing more to read: say so, once, when that is because somebody else has cut or replaced the file."""
        assert self._descriptor is not None
        ours = os.fstat(self._descriptor)
        try:
            replaced = not os.path.samestat(ours, os.stat(file))
        except OSError:
            replaced = True
        changed = "deleted or replaced" if replaced else "cut" if ours.st_size < self._cutter.position else ""
        if changed and changed != self._said_changed:
            log.warning(
                "File %s was %s after %d bytes were read. What is in it now below that is not read: restart the task "
                "to go on in it from there, or stop the connector and reset its offsets to read it from its beginning",
                file, changed, self._cutter.position,
            )  # fmt: skip
        self._said_changed = changed

    def _open(self) -> bool:
        file = self._config.file
        if not file:
            self._descriptor = _STDIN
            return True
        try:
            self._descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            if not self._said_missing:
                self._said_missing = True
                log.warning("Couldn't find file %s: waiting for it to be created", file)
            self._stopping.wait(MISSING_FILE_WAIT_S)
            return False
        except OSError as error:
            raise ConnectError(f"Cannot read file {file}: {error.strerror}") from error
        size = os.fstat(self._descriptor).st_size
        if self._cutter.position > size:
            log.warning(
                "File %s has %d bytes, but %d were read before: waiting for more", file, size, self._cutter.position
            )
        os.lseek(self._descriptor, self._cutter.position, os.SEEK_SET)
        log.info("Reading file %s from byte %d", file, self._cutter.position)
        return True


class FileStreamSourceConnector(SourceConnector):
    """Runs one task, whatever tasks.max says."""

    config_model = FileStreamSourceConfig
    task_class = FileStreamSourceTask
    java_names = ("org.apache.kafka.connect.file.FileStreamSourceConnector",)

    def start(self, config: FileStreamSourceConfig) -> None:
        """Keep the configuration for the task."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One: the order of lines allows no more."""
        return [self._config.originals]

    def exactly_once_support(self, config: FileStreamSourceConfig) -> ExactlyOnceSupport:
        """Files can be read again from an offset, standard input cannot."""
        return ExactlyOnceSupport.SUPPORTED if config.file else ExactlyOnceSupport.UNSUPPORTED

    def alter_offsets(self, config: FileStreamSourceConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Check what a user wants to write."""
        if not config.file:
            raise ConnectError("Offsets cannot be modified if the 'file' configuration is unspecified (standard input)")
        for partition, offset in offsets.items():
            if [name for name, _ in partition] != ["filename"]:
                raise ConnectError(f"Partition objects should contain the key 'filename' alone, not {dict(partition)}")
            if offset is not None:
                _checked_position(offset)
        return True


def _position_of(file: str | None, offset: Mapping[str, Any] | None) -> int:
    if offset is None:
        return 0
    try:
        return _checked_position(offset)
    except ConnectError as error:
        raise ConnectError(f"The stored offset of file {file} cannot be used: {error}") from None


def _checked_position(offset: Mapping[str, Any]) -> int:
    position = offset.get("position")
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ConnectError(f"An offset must be {{'position': n}} with a whole number of bytes, not {dict(offset)}")
    return position
