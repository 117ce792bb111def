"""A segment in the making: batches are gathered and written in large pieces, and everything is synced at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace_broker.log.segment import RELATIVE_OFFSET_MAX, TRANSACTION_INDEX_SUFFIX, LogSegment
from headrace_broker.log.storage import Storage
from headrace_broker.log.transaction_index import AbortedTransaction, encode_transaction_index
from headrace_broker.records.batch import BatchHeader, Buffer, read_header

_WRITE_BYTES = 1024 * 1024
_SYNC_BYTES = 16 * 1024 * 1024
"""So much is written before it is pushed to the disk: what piles up would hold up the broker's own fsyncs."""


class SegmentOutput:
    """Writes `segment`, a new one with `.cleaned` names; files of that name that an earlier run left are removed."""

    def __init__(
        self, storage: Storage, segment: LogSegment, index_interval_bytes: int, pace: Callable[[int], None]
    ) -> None:
        self.segment = segment
        self._storage = storage
        self._index_interval_bytes = index_interval_bytes
        self._pace = pace
        self._pending: list[Buffer] = []
        self._headers: list[BatchHeader] = []
        self._pending_bytes = 0
        self._unsynced_bytes = 0
        self.discard()

    def add(self, batch: Buffer) -> None:
        """Take the next batch. Raises OverflowError when the segment would be larger than its index can tell."""
        if self.segment.size_bytes + self._pending_bytes + len(batch) > RELATIVE_OFFSET_MAX:
            raise OverflowError
        self._pending.append(batch)
        self._headers.append(read_header(batch))
        self._pending_bytes += len(batch)
        if self._pending_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._pending)
        self.segment.append(data, self._headers, self._index_interval_bytes)
        self._pending, self._headers, self._pending_bytes = [], [], 0
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= _SYNC_BYTES:
            self.segment.file.sync()
            self._unsynced_bytes = 0
        self._pace(len(data))

    def finish(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Write what is left, and the indexes, and return once all would survive a power failure."""
        self._write()
        index = encode_transaction_index(aborted)
        if index:
            path = self.segment.path(TRANSACTION_INDEX_SUFFIX)
            self._storage.write(path, index)
            self._storage.sync(path)
        self.segment.finish()
        self.segment.flush()
        self.segment.release()

    def discard(self) -> None:
        """Remove the files."""
        self.segment.remove()
