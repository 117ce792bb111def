"""Writes snapshots of the committed metadata.

The snapshotter also deletes old snapshots, and the log segments before the oldest remaining snapshot (KIP-630). Every
node writes its own snapshots. The image is immutable, so the event loop encodes it one batch of records at a time and
does other work in between. Syncs run in a thread.

A node writes a snapshot after `metadata.log.max.snapshot.interval.ms`, or when the new records reach
`metadata.log.max.record.bytes.between.snapshots`. It writes the snapshot earlier if the new records are several times
as large as the last snapshot, so that the duration of a start depends on the size of the metadata and not on the number
of changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshots import image_records
from headrace_broker.protocol.errors import ApiError
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.snapshot_files import encode_snapshot

logger = logging.getLogger(__name__)

_LOG_BYTES_MIN = 256 * 1024
_LOG_PER_SNAPSHOT = 4


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The limits that determine when to write a snapshot, and when to delete old snapshots and log segments."""

    max_bytes_between: int = 20 * 1024 * 1024
    max_interval_ms: int = 3_600_000
    retention_bytes: int = 100 * 1024 * 1024
    retention_ms: int = 7 * 24 * 3_600_000


class Snapshotter:
    """Decides after every commit whether to write a snapshot, and writes it. All methods run on the event loop."""

    def __init__(
        self, log: MetadataLog, image: Callable[[], MetadataImage], policy: SnapshotPolicy, now_ms: Callable[[], int]
    ) -> None:
        self._log = log
        self._image = image
        self._policy = policy
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._bytes_at_last = 0
        self._last_ms = now_ms()
        self._times: dict[OffsetAndEpoch, int] = dict.fromkeys(log.snapshots.ids, now_ms())
        self._writing: asyncio.Task[None] | None = None

    def on_commit(self) -> None:
        """Write a snapshot if the limits in `SnapshotPolicy` require one. The quorum calls this after every commit."""
        if self._writing is None and self._is_due():
            self._writing = self._loop.create_task(self._write())
            self._writing.add_done_callback(self._on_write_done)

    def _is_due(self) -> bool:
        latest = self._log.latest_snapshot()
        if self._image().offset < (latest[0] if latest is not None else 1):
            return False
        new_bytes = self._log.replayed_bytes - self._bytes_at_last
        if self._now_ms() - self._last_ms >= self._policy.max_interval_ms:
            return True
        if new_bytes < min(_LOG_BYTES_MIN, self._policy.max_bytes_between):
            return False
        size_bytes = self._log.snapshots.size(latest) if latest is not None else 0
        return new_bytes >= min(self._policy.max_bytes_between, max(_LOG_BYTES_MIN, size_bytes * _LOG_PER_SNAPSHOT))

    async def _write(self) -> None:
        log, image = self._log, self._image()
        snapshot = image.offset + 1, image.epoch
        bytes_now, started_ms = log.replayed_bytes, self._now_ms()
        try:
            position = 0
            for chunk in encode_snapshot(image_records(image), image.epoch, started_ms):
                log.snapshots.write_chunk(snapshot, position, chunk)
                position += len(chunk)
                await asyncio.sleep(0)
            await self._loop.run_in_executor(None, log.sync, log.unflushed_files())
            await self._loop.run_in_executor(None, log.snapshots.sync_part, snapshot)
            newest = log.latest_snapshot()
            if newest is not None and newest >= snapshot:  # a newer snapshot was fetched in the meantime
                log.snapshots.discard(snapshot)
                return
            log.snapshots.finish(snapshot)
            await self._loop.run_in_executor(None, log.snapshots.sync_names)
            log.roll()
            self._times[snapshot] = started_ms
            self._bytes_at_last, self._last_ms = bytes_now, started_ms
            self._delete_old_snapshots()
        except (OSError, ApiError) as error:
            logger.error(
                "Metadata snapshot: cannot write the snapshot, retrying when the next snapshot is due: %s", error
            )
            self._bytes_at_last, self._last_ms = bytes_now, started_ms
            return
        logger.info("Metadata snapshot: wrote a snapshot of %d bytes with end offset %d", position, snapshot[0])

    def _delete_old_snapshots(self) -> None:
        """Delete the snapshots that exceed the retention time or size.

        Also delete the log segments before the oldest remaining snapshot.
        """
        snapshots, policy = self._log.snapshots, self._policy
        kept = list(snapshots.ids)
        size_bytes = self._log.log.size_bytes + sum(map(snapshots.size, kept))
        while len(kept) > 1:
            is_old = self._now_ms() - self._times.get(kept[0], self._now_ms()) > policy.retention_ms >= 0
            if not is_old and not size_bytes > policy.retention_bytes >= 0:
                break
            size_bytes -= snapshots.size(kept[0])
            self._times.pop(kept.pop(0), None)
            self._log.delete_before(kept[0])
            size_bytes = self._log.log.size_bytes + sum(map(snapshots.size, kept))

    def _on_write_done(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("Metadata snapshot: unexpected error while writing a snapshot", exc_info=task.exception())

    async def close(self) -> None:
        """Wait until the snapshot in progress is written."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
