"""Writes a cleaned segment: buffers batches, writes them in large chunks, and syncs all files at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace_broker.log.segment import RELATIVE_OFFSET_MAX, TRANSACTION_INDEX_SUFFIX, LogSegment
from headrace_broker.log.transaction_index import AbortedTxn, encode_transaction_index
from headrace_broker.records.batch import BatchHeader, Buffer, read_header

if TYPE_CHECKING:
    from headrace_broker.log.storage import Storage

_WRITE_BYTES = 1024 * 1024
_SYNC_BYTES = 16 * 1024 * 1024
"""Bytes written between two syncs.

If more unsynced bytes were in the page cache, the broker's own fsyncs would be slower.
"""


class SegmentOutput:
    """Writes the files of the cleaned segment `segment`. The file names end with `.cleaned`.

    If an earlier cleaning left files with these names, the constructor removes them.
    """

    def __init__(
        self, storage: Storage, segment: LogSegment, index_interval_bytes: int, maybe_throttle: Callable[[int], None]
    ) -> None:
        self.segment = segment
        self._storage = storage
        self._index_interval_bytes = index_interval_bytes
        self._maybe_throttle = maybe_throttle
        self._pending: list[Buffer] = []
        self._headers: list[BatchHeader] = []
        self._pending_bytes = 0
        self._unsynced_bytes = 0
        self.discard()

    def add(self, batch: Buffer) -> None:
        """Add the next batch. Raises OverflowError if the segment would become too large for 31-bit file positions."""
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
        self._maybe_throttle(len(data))

    def finish(self, aborted: Iterable[AbortedTxn]) -> None:
        """Write the remaining batches and the indexes, and sync all files.

        `aborted` contains the entries of the transaction index.
        """
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
        """Remove the cleaned segment's files."""
        self.segment.remove()
