"""Requests that wait: long-polling fetches and acks=all produces, as data.

Pure: the owner says that a partition advanced, that it must be looked at again, or what time it is, and gets back the
operations that are due; completing them is the owner's affair.  An operation is due at its deadline at the latest, is
handed out exactly once, and costs nothing after it was handed out or cancelled.

A fetch is due when the bytes it still misses have arrived; a produce when each of its partitions has passed the
offset it wrote.  What a partition passes costs nothing for the produces that are behind it: a producer may have a
thousand requests in flight.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import Any

_OFFSET = itemgetter(0)
_PLACE = itemgetter(0, 1)


class Parked:
    """One waiting operation.  `payload` is the owner's; the rest belongs to `ParkedOperations`."""

    __slots__ = ("_sequence", "deadline_ms", "done", "keys", "missing_bytes", "payload", "required_offsets")

    def __init__(
        self,
        payload: Any,
        keys: Iterable[Hashable],
        deadline_ms: int,
        *,
        missing_bytes: int | None = None,
        required_offsets: dict[Hashable, int] | None = None,
    ) -> None:
        self.payload = payload
        self.keys = tuple(keys)
        self.deadline_ms = deadline_ms
        self.missing_bytes = missing_bytes
        self.required_offsets = required_offsets
        self.done = False
        self._sequence = 0

    def take_payload(self) -> Any:
        """Hand out the payload for good: it knows this operation, and the two would outlive their use."""
        payload, self.payload = self.payload, None
        return payload


class ParkedOperations:
    """Every waiting operation, found by the partitions it waits for and by its deadline."""

    __slots__ = ("_by_key", "_deadlines", "_live", "_produces", "_sequence")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Parked, None]] = {}
        self._produces: dict[Hashable, list[tuple[int, int, Parked]]] = {}  # (offset, sequence, operation), ascending
        self._deadlines: list[tuple[int, int, Parked]] = []
        self._sequence = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def produces(self) -> int:
        """How many of them wait for replicas rather than for bytes."""
        return sum(not entry[2].done and entry[2].required_offsets is not None for entry in self._deadlines)

    def park(self, operation: Parked) -> None:
        """Wait for `operation`'s partitions or its deadline."""
        self._sequence += 1
        self._live += 1
        operation._sequence = self._sequence
        if operation.required_offsets is None:
            for key in operation.keys:
                self._by_key.setdefault(key, {})[operation] = None
        else:
            for key, offset in operation.required_offsets.items():
                insort(self._produces.setdefault(key, []), (offset, self._sequence, operation))
        heapq.heappush(self._deadlines, (operation.deadline_ms, self._sequence, operation))

    def waiting_for(self, key: Hashable) -> bool:
        """Whether anything waits for this partition (the hot path asks before it calls `advanced`)."""
        return key in self._by_key or key in self._produces

    def advanced(self, key: Hashable, high_watermark: int, size_bytes: int) -> list[Parked]:
        """Committed data grew to `high_watermark` by `size_bytes`: the operations that are due by it."""
        due = self._passed(key, high_watermark)
        for operation in self._by_key.get(key, ()):
            if operation.missing_bytes is not None:
                operation.missing_bytes -= size_bytes
                if operation.missing_bytes <= 0:
                    due.append(operation)
        for operation in due:
            self._remove(operation)
        return due

    def _passed(self, key: Hashable, high_watermark: int) -> list[Parked]:
        """The produces that waited for this offset of the partition last, in the order of their offsets."""
        waiting = self._produces.get(key)
        if waiting is None:
            return []
        passed = waiting[: bisect_left(waiting, high_watermark + 1, key=_OFFSET)]
        if len(passed) == len(waiting):
            del self._produces[key]
        else:
            del waiting[: len(passed)]
        due = []
        for _, _, operation in passed:
            required = operation.required_offsets
            if required is not None:
                del required[key]
                if not required:
                    due.append(operation)
        return due

    def disturbed(self, key: Hashable) -> list[Parked]:
        """The partition went away or changed its leader: everything that still waits for it is due."""
        due = [*self._by_key.get(key, ()), *(operation for _, _, operation in self._produces.get(key, ()))]
        for operation in due:
            self._remove(operation)
        return due

    def expired(self, now_ms: int) -> list[Parked]:
        """The operations whose deadline has come."""
        due: list[Parked] = []
        heap = self._deadlines
        while heap and (heap[0][2].done or heap[0][0] <= now_ms):
            operation = heapq.heappop(heap)[2]
            if not operation.done:
                self._remove(operation)
                due.append(operation)
        return due

    def cancel(self, operation: Parked) -> None:
        """Forget an operation whose client is gone."""
        if not operation.done:
            self._remove(operation)
            operation.take_payload()

    def next_deadline_ms(self) -> int | None:
        """When `expired` has something to give at the latest, or None."""
        heap = self._deadlines
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _remove(self, operation: Parked) -> None:
        operation.done = True
        self._live -= 1
        if operation.required_offsets is None:
            for key in operation.keys:
                waiting = self._by_key.get(key)  # None for what a request names twice
                if waiting is not None:
                    waiting.pop(operation, None)
                    if not waiting:
                        del self._by_key[key]
        else:
            for key, offset in operation.required_offsets.items():
                produces = self._produces[key]
                del produces[bisect_left(produces, (offset, operation._sequence), key=_PLACE)]
                if not produces:
                    del self._produces[key]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self._live:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
