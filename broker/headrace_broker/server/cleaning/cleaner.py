"""The broker's log cleaner: picks the dirtiest compacted log, has it cleaned elsewhere, and puts the result in place.

Owned by the event loop. The cleaning itself runs in a helper (`cleaner_helper`), because it keeps a processor busy;
here is only what must see the log as it is now: the choice, and the swap, which is a few renames. A log that is cut,
deleted or gets another leader meanwhile is left as it is and cleaned another time. One that cannot be cleaned is set
aside with a line that says why, and the others go on. Each replica cleans its own log.
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
from headrace_broker.log.compaction.choice import DirtyRange, dirty_range
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
from headrace_broker.server.cleaning.cleaner_helper import CleanerHelper
from headrace_broker.server.config import BrokerConfig

logger = logging.getLogger(__name__)

_LOGS_AT_ONCE = 64
_IDLE_S = 10.0
_RETRY_MS_MIN = 1000
_RETRY_MS_MAX = 600_000

Lineage = tuple[str, int, int]


def _lineage(log: PartitionLog) -> Lineage:
    """What stays the same while nobody renames the log, cuts it, or begins a new leader epoch."""
    return log.directory, log.truncations, log.latest_epoch


@dataclass(slots=True)
class _SetAside:
    """A log that failed: left alone until `retry_ms` (None: until it is cut or the broker starts anew)."""

    lineage: Lineage
    retry_ms: int | None
    pause_ms: int


class LogCleaner:
    """Cleans one log after another while there is one to clean."""

    def __init__(
        self,
        logs: LogManager,
        storage: Storage,
        config: BrokerConfig,
        helper: CleanerHelper,
        now_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._storage = storage
        self._config = config
        self._helper = helper
        self._now_ms = now_ms
        self._set_aside: WeakKeyDictionary[PartitionLog, _SetAside] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Clean from now on, unless log.cleaner.enable says no."""
        if self._config.log_cleaner_enable:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop at once; what was being cleaned stays as it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._helper.close()

    def _write_checkpoint(self) -> None:
        try:
            self._logs.checkpoints.write(CLEANER_FILE)
        except OSError as error:  # a full disk, mostly: without it a restart cleans again what is clean
            logger.warning("Keeping in memory how far logs are clean: %s", error.strerror or error)

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
                    await self._helper.close()
            except Exception:
                logger.exception("the log cleaner failed, going on")
            await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)

    # Choice

    async def clean_all(self) -> int:
        """Clean the logs that are due now, the dirtiest first; returns how many were tried."""
        due = await self._due()
        for log in due:
            if self._is_cleanable(log) and (dirty := self._dirty_range(log)) is not None and dirty.is_due(log.config):
                await self._clean(log, dirty)
        return len(due)

    async def _due(self) -> list[PartitionLog]:
        due: list[tuple[float, PartitionLog]] = []
        for count, log in enumerate(list(self._logs.logs.values()), start=1):
            if count % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
            dirty = self._dirty_range(log) if self._is_cleanable(log) else None
            if dirty is not None and dirty.is_due(log.config):
                due.append((dirty.dirty_ratio, log))
        due.sort(key=itemgetter(0), reverse=True)
        return [log for _, log in due]

    def _is_cleanable(self, log: PartitionLog) -> bool:
        if not log.config.cleanup_compact or log.offline_reason is not None or len(log.segments) < 2:
            return False
        aside = self._set_aside.get(log)
        if aside is None:
            return True
        if aside.lineage != _lineage(log):
            del self._set_aside[log]
            return True
        return aside.retry_ms is not None and self._now_ms() >= aside.retry_ms

    def _dirty_range(self, log: PartitionLog) -> DirtyRange | None:
        """What is safe on disk: an older record may not go for a newer one that a power failure would take."""
        try:
            return dirty_range(
                log.segments,
                log.config,
                cleaner_offset=log.cleaner_offset,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                last_stable_offset=min(log.last_stable_offset, log.recovery_point),
                now_ms=self._now_ms(),
            )
        except (OSError, CorruptBatchError) as error:
            self._failed(log, CleaningFailed(f"{log.directory}: {error}", isinstance(error, CorruptBatchError)))
            return None

    # One log

    async def _clean(self, log: PartitionLog, dirty: DirtyRange) -> None:
        lineage = _lineage(log)
        if not await self._epochs_are_safe(log) or not self._is_wanted(log, lineage):
            return
        started_ms = self._now_ms()
        job = self._job(log, dirty)
        log.is_being_cleaned = True
        is_finished = False
        try:
            async with aclosing(self._helper.clean(job, lambda: self._is_wanted(log, lineage))) as reports:
                async for report in reports:
                    if not self._is_wanted(log, lineage):
                        break
                    if isinstance(report, CleanedSegment):
                        log.replace_segments(report, self._now_ms())
                    elif isinstance(report, CleaningFailed):
                        self._failed(log, report)
                    else:
                        is_finished = True
                        await self._finish(log, dirty, report, self._now_ms() - started_ms)
        except ApiError as error:  # the log is offline now, and has said so
            logger.error("%s", error.message)
        finally:
            log.is_being_cleaned = False
            if not is_finished:
                # A deleted log has moved; the process that cleans knew its name, which may be another log's by now.
                for directory in dict.fromkeys((job.directory, log.directory)):
                    await asyncio.shield(self._remove_unfinished(directory))

    async def _epochs_are_safe(self, log: PartitionLog) -> bool:
        """Have the epochs on disk: where their first records are gone, nothing else tells where they began."""
        path = log.unflushed_epochs_path
        return path is None or await self._sync(log, self._storage.sync, path)

    async def _sync(self, log: PartitionLog, sync: Callable[[str], None], path: str) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(None, sync, path)
        except OSError as error:
            reason = f"{path} cannot be synced: {error.strerror or error}"
            self._failed(log, CleaningFailed(reason, is_lasting=False))
            return False
        return True

    def _is_wanted(self, log: PartitionLog, lineage: Lineage) -> bool:
        return (
            self._logs.get(log.topic, log.partition) is log
            and _lineage(log) == lineage
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
            key_map_bytes_max=self._config.log_cleaner_dedupe_buffer_size,
            io_bytes_per_second=self._config.log_cleaner_io_max_bytes_per_second,
            is_overdue=dirty.is_overdue,
            last_records=_last_records(log, dirty.end_offset),
        )

    async def _finish(self, log: PartitionLog, dirty: DirtyRange, done: CleaningDone, took_ms: int) -> None:
        """Note how far the log is clean, once the new names are sure to be on disk."""
        self._set_aside.pop(log, None)
        truncations = log.truncations
        if not await self._sync(log, self._storage.sync_directory, log.directory):
            return
        if log.truncations == truncations:
            log.cleaner_offset = done.end_offset
        logger.info(
            "Compacted %s from offset %d to %d in %d ms: %d bytes became %d, %d records became %d, %d keys",
            log.name, dirty.first_dirty_offset, done.end_offset, took_ms,
            done.bytes_before, done.bytes_after, done.records_before, done.records_after, done.keys,
        )  # fmt: skip

    def _failed(self, log: PartitionLog, failure: CleaningFailed) -> None:
        if failure.is_lasting:
            self._set_aside[log] = _SetAside(_lineage(log), None, 0)
            logger.error("%s cannot be compacted and is set aside: %s", log.name, failure.reason)
            return
        before = self._set_aside.get(log)
        pause_ms = _RETRY_MS_MIN if before is None else min(before.pause_ms * 2, _RETRY_MS_MAX)
        self._set_aside[log] = _SetAside(_lineage(log), self._now_ms() + pause_ms, pause_ms)
        logger.error("%s could not be compacted, trying again in %d s: %s", log.name, pause_ms // 1000, failure.reason)

    async def _remove_unfinished(self, directory: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, _remove_cleaned, self._storage, directory)


def _last_records(log: PartitionLog, end_offset: int) -> tuple[LastRecord, ...]:
    """What the part to be cleaned holds of producers that are still active."""
    records = (
        LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
        for producer_id, entry in log.producers.producers.items()
    )
    return tuple(record for record in records if record.last_offset < end_offset)


def _remove_cleaned(storage: Storage, directory: str) -> None:
    """Remove what a run left behind that did not end; the next start of the broker would, too."""
    try:
        for name in storage.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                storage.remove(f"{directory}/{name}")
    except OSError as error:
        logger.debug("%s is gone: %s", directory, error)
