"""Delayed operations as plain data, without an event loop.

A delayed operation is a long-polling fetch request or a produce request with acks=all. This module keeps track of the
delayed operations. The purgatory (`purgatory.py`) completes them.

The purgatory calls a method of this module after an append, a leader change or the deletion of a partition. The
purgatory also calls a method when the deadline of an operation has passed. The method returns the operations that the
purgatory must now complete. Each operation is returned exactly once, at the latest when its deadline has passed. An
operation that was returned or cancelled uses no memory or CPU time.

A delayed fetch request completes when enough bytes were appended. A delayed produce request completes when each of its
partitions has reached the required offset. One producer may have a thousand produce requests in flight. Therefore, an
append must not iterate over the produce requests that it does not complete.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import Any

_OFFSET = itemgetter(0)
_OFFSET_AND_SEQUENCE = itemgetter(0, 1)


class DelayedOperation:
    """One delayed operation. The purgatory uses `payload`. All other attributes are for the class DelayedOperations."""

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

    def detach_payload(self) -> Any:
        """Return the payload, and remove this operation's reference to it.

        The payload also refers to this operation. Without the removal, the two references would be a cycle.
        """
        payload, self.payload = self.payload, None
        return payload


class DelayedOperations:
    """All delayed operations, indexed by the keys they watch (partitions, fetch sessions) and by deadline."""

    __slots__ = ("_by_key", "_deadlines", "_pending", "_produces", "_sequence")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._produces: dict[Hashable, list[tuple[int, int, DelayedOperation]]] = {}
        """Per key: (required offset, sequence, operation), ascending."""
        self._deadlines: list[tuple[int, int, DelayedOperation]] = []
        self._sequence = 0
        self._pending = 0

    def __len__(self) -> int:
        return self._pending

    def produce_count(self) -> int:
        """Return the number of delayed produce requests. All other operations are fetch requests."""
        return sum(not entry[2].done and entry[2].required_offsets is not None for entry in self._deadlines)

    def watch(self, operation: DelayedOperation) -> None:
        """Add an operation. The operation watches its keys until it completes or its deadline passes."""
        self._sequence += 1
        self._pending += 1
        operation._sequence = self._sequence
        if operation.required_offsets is None:
            for key in operation.keys:
                self._by_key.setdefault(key, {})[operation] = None
        else:
            for key, offset in operation.required_offsets.items():
                insort(self._produces.setdefault(key, []), (offset, self._sequence, operation))
        heapq.heappush(self._deadlines, (operation.deadline_ms, self._sequence, operation))

    def is_watched(self, key: Hashable) -> bool:
        """Return whether any operation watches this key. Callers check this first, to save calls of `try_complete`."""
        return key in self._by_key or key in self._produces

    def try_complete(self, key: Hashable, end_offset: int, size_bytes: int) -> list[DelayedOperation]:
        """Remove and return the operations on `key` that can complete now.

        The data of `key` has grown by `size_bytes` to `end_offset`.
        """
        due = self._complete_produces(key, end_offset)
        for operation in self._by_key.get(key, ()):
            if operation.missing_bytes is not None:
                operation.missing_bytes -= size_bytes
                if operation.missing_bytes <= 0:
                    due.append(operation)
        for operation in due:
            self._remove(operation)
        return due

    def _complete_produces(self, key: Hashable, end_offset: int) -> list[DelayedOperation]:
        """Return the delayed produce requests that complete now, in the order of their required offsets.

        The partition `key` has reached `end_offset`. A produce request completes if it waits for no other partition.
        """
        waiting = self._produces.get(key)
        if waiting is None:
            return []
        reached = waiting[: bisect_left(waiting, end_offset + 1, key=_OFFSET)]
        if len(reached) == len(waiting):
            del self._produces[key]
        else:
            del waiting[: len(reached)]
        due = []
        for _, _, operation in reached:
            required = operation.required_offsets
            if required is not None:
                del required[key]
                if not required:
                    due.append(operation)
        return due

    def force_complete(self, key: Hashable) -> list[DelayedOperation]:
        """Remove and return every operation that watches `key`.

        For example, the purgatory calls this method when the partition `key` was deleted.
        """
        due = [*self._by_key.get(key, ()), *(operation for _, _, operation in self._produces.get(key, ()))]
        for operation in due:
            self._remove(operation)
        return due

    def expire(self, now_ms: int) -> list[DelayedOperation]:
        """Remove and return the operations whose deadline has passed."""
        due: list[DelayedOperation] = []
        heap = self._deadlines
        while heap and (heap[0][2].done or heap[0][0] <= now_ms):
            operation = heapq.heappop(heap)[2]
            if not operation.done:
                self._remove(operation)
                due.append(operation)
        return due

    def cancel(self, operation: DelayedOperation) -> None:
        """Remove an operation whose client has disconnected. The operation never completes."""
        if not operation.done:
            self._remove(operation)
            operation.detach_payload()

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a pending operation, or None."""
        heap = self._deadlines
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _remove(self, operation: DelayedOperation) -> None:
        operation.done = True
        self._pending -= 1
        if operation.required_offsets is None:
            for key in operation.keys:
                waiting = self._by_key.get(key)  # None when the request names a partition twice
                if waiting is not None:
                    waiting.pop(operation, None)
                    if not waiting:
                        del self._by_key[key]
        else:
            for key, offset in operation.required_offsets.items():
                produces = self._produces[key]
                del produces[bisect_left(produces, (offset, operation._sequence), key=_OFFSET_AND_SEQUENCE)]
                if not produces:
                    del self._produces[key]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self._pending:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
