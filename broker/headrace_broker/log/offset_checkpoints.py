"""The offset checkpoints of all log directories: what each tells of a log, how often it is written, how it stays true.

They are written now and then, and tell of a log by its name.  What they still say of one that was deleted or cut would
hold, after a crash, for what is there now: they are corrected before anything is written in its place.  Owned by the
log manager, on the event loop; what is handed out to be written may run in any thread.
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
    """What one of the files tells of a log (None: nothing), how often it is written, and whether it is synced then."""

    offset_of: Callable[[PartitionLog], int | None]
    interval_ms: int
    durable: bool


def _moved_log_start(log: PartitionLog) -> int | None:
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None


CHECKPOINTS = {
    HIGH_WATERMARK_FILE: Checkpoint(lambda log: log.high_watermark, 5_000, False),
    RECOVERY_POINT_FILE: Checkpoint(lambda log: log.recovery_point, 60_000, True),
    LOG_START_FILE: Checkpoint(_moved_log_start, 60_000, True),  # what DeleteRecords has moved into a segment
    CLEANER_FILE: Checkpoint(lambda log: log.cleaner_offset, 60_000, False),  # an older one costs work, never records
}


class OffsetCheckpoints:
    """Writes them from the logs that there are."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, PartitionLog],
        directory_of: Mapping[TopicPartition, LogDirectory],
    ) -> None:
        """`logs` and `directory_of` are looked at when something is written."""
        self._directories = directories
        self._logs = logs
        self._directory_of = directory_of
        self.gone: set[TopicPartition] = set()
        """Partitions without a log, of which the files may still tell."""

    def write(self, name: str, *, durable: bool | None = None) -> None:
        """Write the file of that name in every directory.  Raises OSError."""
        for work in self.work(name, durable=durable):
            work()

    def correct(self) -> None:
        """Have no checkpoint tell of logs that are gone, or were cut, nor after a power failure.  Raises OSError.

        A log start offset beyond the end, for one, would have a log emptied.
        """
        for name in CHECKPOINTS:
            self.write(name, durable=True)
        usable = [directory for directory in self._directories if directory.offline_reason is None]
        for directory in usable:
            directory.sync_names()
        for key, log in self._logs.items():
            if self._directory_of[key] in usable:
                log.is_overtold = False
        if len(usable) == len(self._directories):  # another may come back with its files as they were
            self.gone.clear()

    def work(self, name: str, *, durable: bool | None = None) -> list[Work]:
        """What writes the checkpoint of that name, as the logs are now, in every directory."""
        checkpoint, work = CHECKPOINTS[name], []
        for directory in self._directories:
            if directory.offline_reason is not None:
                continue
            offsets = {
                key: offset
                for key, log in self._logs.items()
                if self._directory_of[key] is directory and (offset := checkpoint.offset_of(log)) is not None
            }
            is_durable = checkpoint.durable if durable is None else durable
            work.append(directory.checkpoint(name, offsets, durable=is_durable))
        return work
