"""The broker's log cleaner. Selects the dirtiest compacted log, starts its cleaning, and replaces the old segments.

All methods of `LogCleaner` run on the event loop. Cleaning needs much CPU time, so `cleaning_executor` runs it in
another process. This module does the steps that need the current state of the log: it selects the log, and it replaces
the old segments with a few renames. If a log is truncated or deleted during its cleaning, or its leader epoch changes,
the broker stops the cleaning and retries it later. If a log cannot be cleaned, the broker marks it uncleanable, logs an
error and cleans the other logs. Each replica cleans its own log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from operator import itemgetter
from weakref import WeakKeyDictionary

from headrace_broker.log.checkpoints import CLEANER_FILE
from headrace_broker.log.compaction.cleanable import DirtyRange, find_dirty_range
from headrace_broker.log.compaction.job import (
    CleanedSegment,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    LastRecord,
)
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.segment import CLEANED_SUFFIX
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.errors import ApiError
from headrace_broker.records.batch import CorruptBatchError
from headrace_broker.server.cleaning.cleaning_executor import CleaningExecutor
from headrace_broker.server.config import BrokerConfig

logger = logging.getLogger(__name__)

_LOGS_PER_YIELD = 64
_IDLE_S = 10.0
_RETRY_MS_MIN = 1000
_RETRY_MS_MAX = 600_000

LogIdentity = tuple[str, int, int]


def _identity_of(log: PartitionLog) -> LogIdentity:
    """Return a value that changes when the log is renamed or truncated, or when a new leader epoch starts."""
    return log.directory, log.truncations, log.latest_epoch


@dataclass(slots=True)
class UncleanableLog:
    """A log whose cleaning failed.

    The cleaner tries again at `retry_ms`. If `retry_ms` is None, only a change of `identity` or a restart makes the log
    cleanable again.
    """

    identity: LogIdentity
    retry_ms: int | None
    backoff_ms: int


class LogCleaner:
    """Cleans the logs of a broker, one at a time."""

    def __init__(
        self,
        logs: LogManager,
        storage: Storage,
        config: BrokerConfig,
        executor: CleaningExecutor,
        now_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._storage = storage
        self._config = config
        self._executor = executor
        self._now_ms = now_ms
        self._uncleanable: WeakKeyDictionary[PartitionLog, UncleanableLog] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start cleaning, unless log.cleaner.enable=false."""
        if self._config.log_cleaner_enable:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop immediately; the result of a cleaning in progress is discarded."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._executor.close()

    def _write_checkpoint(self) -> None:
        try:
            self._logs.checkpoints.write(CLEANER_FILE)
        except OSError as error:  # usually the disk is full; without the checkpoint, a restart cleans the logs again
            logger.warning(
                "Log cleaner: cannot write the cleaner offset checkpoint, retrying: %s", error.strerror or error
            )

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        busy_at = loop.time()
        while True:
            try:
                if await self.clean_all():
                    busy_at = loop.time()
                    continue
                self._write_checkpoint()
                if loop.time() - busy_at >= _IDLE_S:
                    await self._executor.close()
            except Exception:
                logger.exception("Log cleaner: unexpected error, continuing")
            await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)

    # -- selecting logs ----------------------------------------------------------------------------------------------

    async def clean_all(self) -> int:
        """Clean all logs that are due for cleaning, the dirtiest log first. Return the number of these logs."""
        due = await self._due()
        for log in due:
            if self._may_clean(log) and (dirty := self._dirty_range(log)) is not None and dirty.is_due(log.config):
                await self._clean(log, dirty)
        return len(due)

    async def _due(self) -> list[PartitionLog]:
        due: list[tuple[float, PartitionLog]] = []
        for count, log in enumerate(list(self._logs.logs.values()), start=1):
            if count % _LOGS_PER_YIELD == 0:
                await asyncio.sleep(0)
            dirty = self._dirty_range(log) if self._may_clean(log) else None
            if dirty is not None and dirty.is_due(log.config):
                due.append((dirty.dirty_ratio, log))
        due.sort(key=itemgetter(0), reverse=True)
        return [log for _, log in due]

    def _may_clean(self, log: PartitionLog) -> bool:
        if not log.config.cleanup_compact or log.offline_reason is not None or len(log.segments) < 2:
            return False
        uncleanable = self._uncleanable.get(log)
        if uncleanable is None:
            return True
        if uncleanable.identity != _identity_of(log):
            del self._uncleanable[log]
            return True
        return uncleanable.retry_ms is not None and self._now_ms() >= uncleanable.retry_ms

    def _dirty_range(self, log: PartitionLog) -> DirtyRange | None:
        """Return the range of offsets to clean, or None if there are no records to clean.

        The range ends at the recovery point or earlier, because records after the recovery point are not synced. If
        cleaning removed a record because an unsynced record has the same key, a power failure could lose both records.
        """
        try:
            return find_dirty_range(
                log.segments,
                log.config,
                cleaner_offset=log.cleaner_offset,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                last_stable_offset=min(log.last_stable_offset, log.recovery_point),
                now_ms=self._now_ms(),
            )
        except (OSError, CorruptBatchError) as error:
            self._record_failure(log, CleaningFailed(f"{log.directory}: {error}", isinstance(error, CorruptBatchError)))
            return None

    # -- cleaning one log --------------------------------------------------------------------------------------------

    async def _clean(self, log: PartitionLog, dirty: DirtyRange) -> None:
        identity = _identity_of(log)
        if not await self._sync_epochs(log) or not self._is_wanted(log, identity):
            return
        started_ms = self._now_ms()
        job = self._job(log, dirty)
        log.is_being_cleaned = True
        is_finished = False
        try:
            async with aclosing(self._executor.clean(job, lambda: self._is_wanted(log, identity))) as reports:
                async for report in reports:
                    if not self._is_wanted(log, identity):
                        break
                    if isinstance(report, CleanedSegment):
                        log.replace_segments(report, self._now_ms())
                    elif isinstance(report, CleaningFailed):
                        self._record_failure(log, report)
                    else:
                        is_finished = True
                        await self._finish(log, dirty, report, self._now_ms() - started_ms)
        except ApiError as error:  # the log is offline now
            logger.error("Log %s: its cleaning failed: %s", log.name, error.message)
        finally:
            log.is_being_cleaned = False
            if not is_finished:
                # Remove the unfinished files from both directories. If the log was deleted, its directory was renamed,
                # but the cleaner process still wrote to the old path. A recreated log may use the old path now.
                for directory in dict.fromkeys((job.directory, log.directory)):
                    await asyncio.shield(self._remove_unfinished(directory))

    async def _sync_epochs(self, log: PartitionLog) -> bool:
        """Sync the leader epoch file.

        After the cleaner has removed the first records of an epoch, only this file contains the epoch's start offset.
        """
        path = log.unflushed_epochs_path
        return path is None or await self._sync(log, self._storage.sync, path)

    async def _sync(self, log: PartitionLog, sync: Callable[[str], None], path: str) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(None, sync, path)
        except OSError as error:
            reason = f"syncing {path} failed: {error.strerror or error}"
            self._record_failure(log, CleaningFailed(reason, is_lasting=False))
            return False
        return True

    def _is_wanted(self, log: PartitionLog, identity: LogIdentity) -> bool:
        return (
            self._logs.get(log.topic, log.partition) is log
            and _identity_of(log) == identity
            and log.offline_reason is None
            and log.config.cleanup_compact
        )

    def _job(self, log: PartitionLog, dirty: DirtyRange) -> CleaningJob:
        config = log.config
        return CleaningJob(
            directory=log.directory,
            segments=tuple(
                (segment.base_offset, segment.size_bytes)
                for segment in log.segments[:-1]
                if segment.base_offset < dirty.end_offset
            ),
            first_dirty_offset=dirty.first_dirty_offset,
            end_offset=dirty.end_offset,
            now_ms=self._now_ms(),
            high_watermark=log.high_watermark,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            offset_map_bytes_max=self._config.log_cleaner_dedupe_buffer_size,
            io_bytes_per_second=self._config.log_cleaner_io_max_bytes_per_second,
            is_overdue=dirty.is_overdue,
            last_records=_last_records(log, dirty.end_offset),
        )

    async def _finish(self, log: PartitionLog, dirty: DirtyRange, done: CleaningDone, took_ms: int) -> None:
        """Sync the directory to make the renames of the new segments durable, then advance the cleaner offset."""
        self._uncleanable.pop(log, None)
        truncations = log.truncations
        if not await self._sync(log, self._storage.sync_directory, log.directory):
            return
        if log.truncations == truncations:
            log.cleaner_offset = done.end_offset
        logger.info(
            "Log %s: cleaned offsets %d to %d in %d ms; the size changed from %d to %d bytes, the number of records "
            "from %d to %d; the offset map had %d keys",
            log.name, dirty.first_dirty_offset, done.end_offset, took_ms,
            done.bytes_before, done.bytes_after, done.records_before, done.records_after, done.keys,
        )  # fmt: skip

    def _record_failure(self, log: PartitionLog, failure: CleaningFailed) -> None:
        if failure.is_lasting:
            self._uncleanable[log] = UncleanableLog(_identity_of(log), None, 0)
            logger.error("Log %s: marked uncleanable: %s", log.name, failure.reason)
            return
        before = self._uncleanable.get(log)
        backoff_ms = _RETRY_MS_MIN if before is None else min(before.backoff_ms * 2, _RETRY_MS_MAX)
        self._uncleanable[log] = UncleanableLog(_identity_of(log), self._now_ms() + backoff_ms, backoff_ms)
        logger.error("Log %s: cleaning failed, retrying in %d s: %s", log.name, backoff_ms // 1000, failure.reason)

    async def _remove_unfinished(self, directory: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, _remove_cleaned, self._storage, directory)


def _last_records(log: PartitionLog, end_offset: int) -> tuple[LastRecord, ...]:
    """Return the last record of each active producer whose last record is before `end_offset`.

    The cleaner must keep these records.
    """
    records = (
        LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
        for producer_id, entry in log.producers.producers.items()
    )
    return tuple(record for record in records if record.last_offset < end_offset)


def _remove_cleaned(storage: Storage, directory: str) -> None:
    """Remove the `.cleaned` files of a cleaning that did not complete, as the next start of the broker would do."""
    try:
        for name in storage.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                storage.remove(f"{directory}/{name}")
    except OSError as error:
        logger.debug(
            "Directory %s: cannot remove the .cleaned files, probably because the log was deleted: %s", directory, error
        )
