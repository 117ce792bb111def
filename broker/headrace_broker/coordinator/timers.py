"""The deadlines of a shard's timers, which can be postponed in constant time.

Every heartbeat postpones its member's deadline, so a postponement must be cheap: `schedule` changes
only a dictionary, and the heap entry keeps the old deadline. When the old deadline is reached,
`pop_due` adds a heap entry with the new deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

TimerKey = tuple[str, ...]


class Timers:
    """The deadlines of one shard's timers. Each key has at most one deadline."""

    __slots__ = ("_deadlines", "_heap", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        # Maps a key to the time of its valid heap entry; other heap entries of the key are stale.
        self._queued: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []

    def schedule(self, key: TimerKey, deadline_ms: int) -> None:
        """Set or replace the deadline of `key`."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queue(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def shift(self, by_ms: int) -> None:
        """Shift every deadline by `by_ms`, which may be negative."""
        self._deadlines = {key: time_ms + by_ms for key, time_ms in self._deadlines.items()}
        self._queued = dict(self._deadlines)
        self._heap = [(time_ms, key) for key, time_ms in self._deadlines.items()]
        heapify(self._heap)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None if there are no deadlines.

        If a deadline was postponed, the returned time may be the old deadline.
        """
        while self._heap:
            time_ms, key = self._heap[0]
            if self._queued.get(key) == time_ms and key in self._deadlines:
                return time_ms
            heappop(self._heap)
            if self._queued.get(key) == time_ms:
                del self._queued[key]
        return None

    def pop_due(self, now_ms: int) -> Iterator[TimerKey]:
        """Remove the deadlines at or before `now_ms`, and yield their keys, the earliest first."""
        while self._heap and self._heap[0][0] <= now_ms:
            time_ms, key = heappop(self._heap)
            if self._queued.get(key) != time_ms:
                continue  # the heap entry is stale: the key was rescheduled to an earlier deadline
            del self._queued[key]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._queue(key, deadline_ms)
            else:
                del self._deadlines[key]
                yield key

    def _queue(self, key: TimerKey, deadline_ms: int) -> None:
        heappush(self._heap, (deadline_ms, key))
        self._queued[key] = deadline_ms
