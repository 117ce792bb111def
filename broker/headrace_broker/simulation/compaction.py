"""Checks that a compacted log keeps the latest record of each key, and tombstones until their delete horizon.

Each replica cleans its log separately. The first cleaning that finds a tombstone sets the tombstone's delete horizon
(KIP-534). A later cleaning may remove the tombstone when the horizon has passed on the node's clock. A replica that was
down until after the horizon may never receive the tombstone and may keep an older record. A replica that is catching up
copies the leader's cleaned log. Until the replica has fetched the latest record of a key, it may have no record of
this key, because the leader has removed the older records.
"""

from __future__ import annotations

from headrace_broker.log.log import PartitionLog
from headrace_broker.records.batch import BatchHeader, iter_batches
from headrace_broker.records.reader import read_batch
from headrace_broker.simulation.simulated_cluster import Violation

_READ_BYTES = 1 << 24


class CompactedLog:
    """The committed records of one compacted partition, collected from all replicas."""

    def __init__(self) -> None:
        self._latest: dict[bytes | None, int] = {}
        self._tombstones: set[int] = set()
        self._end_offset = 0

    def record_committed(self, view: memoryview, position: int, header: BatchHeader) -> None:
        """Add the committed batch that starts at `position` in `view`.

        Ignore the batch if it is below the end offset of the batches that were added before.
        """
        if header.base_offset < self._end_offset:
            return
        self._end_offset = header.next_offset
        columns = read_batch(view, position, header)
        for offset, key, value in zip(columns.offsets or (), columns.keys or (), columns.values, strict=True):
            self._latest[key] = offset
            if value is None:
                self._tombstones.add(offset)

    def check(
        self, log: PartitionLog, tombstones: dict[int, int | None], now_ms: int, log_name: str
    ) -> dict[int, int | None]:
        """Check a replica's log after its segments changed, and return the tombstones in the log.

        The result maps the offset of each tombstone to its delete horizon in ms, or to None if the horizon is not set
        yet. `tombstones` is the result of the previous check of this log. Raises Violation if a record that must be
        kept was removed.
        """
        offsets, found_tombstones = _read_committed(log)
        for key, latest in self._latest.items():
            if latest in offsets or not log.log_start_offset <= latest < log.high_watermark:
                continue
            if latest not in self._tombstones:
                raise Violation(f"{log_name}: the latest record of {key!r}, at offset {latest}, was removed")
            horizon_ms = tombstones.get(latest, now_ms)
            if horizon_ms is None or horizon_ms > now_ms:
                raise Violation(
                    f"{log_name}: the tombstone of {key!r} at offset {latest} was removed at {now_ms}, "
                    f"before its delete horizon {horizon_ms}"
                )
        return found_tombstones


def _read_committed(log: PartitionLog) -> tuple[set[int], dict[int, int | None]]:
    """Read the records below the log's high watermark.

    Return the offsets of the records, and the delete horizons of the tombstones by offset.
    """
    found_offsets: set[int] = set()
    tombstones: dict[int, int | None] = {}
    position, end = log.log_start_offset, log.high_watermark
    # Each call of `log.read` reads from one segment.
    while buffers := log.read(position, _READ_BYTES, upper_bound_offset=end).buffers:
        data = memoryview(b"".join(buffers))
        for start, header in iter_batches(data):
            columns = read_batch(data, start, header)
            offsets = columns.offsets or ()
            found_offsets.update(offsets)
            horizon_ms = header.base_timestamp if header.has_delete_horizon else None
            tombstones.update(
                (offset, horizon_ms) for offset, value in zip(offsets, columns.values, strict=True) if value is None
            )
            position = header.next_offset
    return found_offsets, tombstones
