"""Writes the offset checkpoint files of all log directories: periodically, and after a log is deleted or truncated.

A checkpoint identifies a log by its topic and partition. After a log is deleted or truncated, the checkpoint files
still contain the log's old offsets. After a crash, these offsets would be applied to a recreated log or to new records.
For this reason, the checkpoints are rewritten before the next append to a log of the same topic and partition.

The log manager owns the `OffsetCheckpoints` object and calls it on the event loop. The write tasks that it returns may
run in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_broker.log.checkpoints import CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.log import PartitionLog
from headrace_broker.protocol.topic_names import TopicPartition

Work = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint file and its write interval.

    `offset_of` returns the offset to write into the file for a log. If it returns None, no entry is written for the
    log. If `durable` is set, each write is synced.
    """

    offset_of: Callable[[PartitionLog], int | None]
    interval_ms: int
    durable: bool


def _moved_log_start(log: PartitionLog) -> int | None:
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None


CHECKPOINTS = {
    HIGH_WATERMARK_FILE: Checkpoint(lambda log: log.high_watermark, 5_000, False),
    RECOVERY_POINT_FILE: Checkpoint(lambda log: log.recovery_point, 60_000, True),
    # This file contains only the log start offsets that are in the middle of a segment, after DeleteRecords.
    LOG_START_FILE: Checkpoint(_moved_log_start, 60_000, True),
    # This file is not synced, because an outdated cleaner offset only causes records to be cleaned again.
    CLEANER_FILE: Checkpoint(lambda log: log.cleaner_offset, 60_000, False),
}


class OffsetCheckpoints:
    """Writes the checkpoint files from the current state of the logs."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, PartitionLog],
        directory_of: Mapping[TopicPartition, LogDirectory],
    ) -> None:
        """Keep references to `logs` and `directory_of`. Each write uses their current contents."""
        self._directories = directories
        self._logs = logs
        self._directory_of = directory_of
        self.stale_partitions: set[TopicPartition] = set()
        """Partitions without a log for which the checkpoint files may still contain an entry."""

    def write(self, name: str, *, durable: bool | None = None) -> None:
        """Write the checkpoint file `name` in every online directory. Raises OSError.

        If `durable` is None, the value of `Checkpoint.durable` is used.
        """
        for task in self.write_tasks(name, durable=durable):
            task()

    def rewrite(self) -> None:
        """Write and sync all checkpoint files, to remove offsets of deleted or truncated logs. Raises OSError.

        For example, if a checkpoint contained an old log start offset that is larger than the log end offset, the next
        start would delete all segments of the log.
        """
        for name in CHECKPOINTS:
            self.write(name, durable=True)
        usable = [directory for directory in self._directories if directory.offline_reason is None]
        for directory in usable:
            directory.sync()
        for key, log in self._logs.items():
            if self._directory_of[key] in usable:
                log.checkpoint_ahead_of_log = False
        if len(usable) == len(self._directories):  # the files in an offline directory are still outdated
            self.stale_partitions.clear()

    def write_tasks(self, name: str, *, durable: bool | None = None) -> list[Work]:
        """Return, for each online directory, a function that writes the checkpoint file `name` in this directory.

        The file receives the current offsets. If `durable` is None, the value of `Checkpoint.durable` is used.
        """
        checkpoint, tasks = CHECKPOINTS[name], []
        for directory in self._directories:
            if directory.offline_reason is not None:
                continue
            offsets = {
                key: offset
                for key, log in self._logs.items()
                if self._directory_of[key] is directory and (offset := checkpoint.offset_of(log)) is not None
            }
            is_durable = checkpoint.durable if durable is None else durable
            tasks.append(directory.checkpoint_task(name, offsets, durable=is_durable))
        return tasks
