"""What must stay of a compacted log, whatever its cleaner does: the newest record of each key, tombstones for a while.

Each replica cleans its own log.  A tombstone may go once a cleaning has met it, and the horizon that it was given then
is over by the clock of the node; a replica that was away for longer may never see it, and keep an older record.
A replica that catches up with one that was cleaned may lack what is the newest up to where it is: a newer one comes.
"""

from __future__ import annotations

from headrace_broker.log.log import PartitionLog
from headrace_broker.records.batch import BatchHeader, iter_batches
from headrace_broker.records.reader import read_batch
from headrace_broker.simulation.world import Violation

_READ_BYTES = 1 << 24


class Compaction:
    """The records of one compacted log that were ever committed."""

    def __init__(self) -> None:
        self._newest: dict[bytes | None, int] = {}
        self._tombstones: set[int] = set()
        self._end_offset = 0

    def committed(self, view: memoryview, position: int, header: BatchHeader) -> None:
        """A batch of some replica is committed; what was committed before is known."""
        if header.base_offset < self._end_offset:
            return
        self._end_offset = header.next_offset
        columns = read_batch(view, position, header)
        for offset, key, value in zip(columns.offsets or (), columns.keys or (), columns.values, strict=True):
            self._newest[key] = offset
            if value is None:
                self._tombstones.add(offset)

    def check(
        self, log: PartitionLog, tombstones: dict[int, int | None], now_ms: int, what: str
    ) -> dict[int, int | None]:
        """Look through a log that has other segments than before.

        `tombstones` {offset: horizon (ms), None without one} were in it when it was last looked through; returns those
        that are.
        """
        held, found = _held(log)
        for key, newest in self._newest.items():
            if newest in held or not log.log_start_offset <= newest < log.high_watermark:
                continue
            if newest not in self._tombstones:
                raise Violation(f"{what}: the newest record of {key!r} was at {newest} and is gone")
            horizon_ms = tombstones.get(newest, now_ms)
            if horizon_ms is None or horizon_ms > now_ms:
                raise Violation(f"{what}: the tombstone of {key!r} at {newest} is gone at {now_ms}, not {horizon_ms}")
        return found


def _held(log: PartitionLog) -> tuple[set[int], dict[int, int | None]]:
    """The offsets that the log has below its high watermark; of tombstones their horizons."""
    held: set[int] = set()
    tombstones: dict[int, int | None] = {}
    position, end = log.log_start_offset, log.high_watermark
    while buffers := log.read(position, _READ_BYTES, upper_bound_offset=end).buffers:  # a segment at a time
        data = memoryview(b"".join(buffers))
        for start, header in iter_batches(data):
            columns = read_batch(data, start, header)
            offsets = columns.offsets or ()
            held.update(offsets)
            horizon_ms = header.base_timestamp if header.has_delete_horizon else None
            tombstones.update(
                (at, horizon_ms) for at, value in zip(offsets, columns.values, strict=True) if value is None
            )
            position = header.next_offset
    return held, tombstones
