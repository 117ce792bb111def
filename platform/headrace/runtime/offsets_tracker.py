"""Tracks which source offsets may be committed: those before the first unacknowledged record. No I/O.

A task submits batches in the order in which it sends them; acknowledgements arrive in any order. An offset is
committable when its batch and all earlier batches of the same source partition are acknowledged. The task's thread
calls `submit`; the event loop calls `acknowledge` and `committable`. No lock is needed, because the two threads share
only atomic operations: append, popleft and reading an integer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.stores.offset_keys import canonical

Offsets = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


class Submission:
    """Records sent together; they are acknowledged after `parts` calls of `acknowledge`."""

    __slots__ = ("offset", "parts")

    def __init__(self, offset: Mapping[str, Any], parts: int) -> None:
        self.offset = offset
        self.parts = parts

    def acknowledge(self) -> None:
        """Acknowledge one part, which was written or intentionally dropped."""
        self.parts -= 1


class OffsetsTracker:
    """The submissions of one task."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Mapping[str, Any], deque[Submission]]] = {}
        self._by_identity: tuple[Mapping[str, Any], deque[Submission]] | None = None

    def submit(self, partition: Mapping[str, Any], offset: Mapping[str, Any], parts: int) -> Submission:
        """Add a submission that needs `parts` acknowledgements; 0 if no record is left to send."""
        submission = Submission(offset, parts)
        self._queue(partition).append(submission)
        return submission

    def committable(self) -> Offsets:
        """Remove and return the newly committable offsets, at most one per source partition."""
        offsets: Offsets = []
        for partition, queue in list(self._queues.values()):
            last: Submission | None = None
            while queue and queue[0].parts <= 0:
                last = queue.popleft()
            if last is not None:
                offsets.append((partition, last.offset))
        return offsets

    def pending(self) -> int:
        """Return the number of submissions whose offsets were not yet returned by `committable`."""
        return sum(len(queue) for _, queue in list(self._queues.values()))

    def unacknowledged(self) -> int:
        """Return the number of submissions that still need acknowledgements."""
        return sum(submission.parts > 0 for _, queue in list(self._queues.values()) for submission in list(queue))

    def _queue(self, partition: Mapping[str, Any]) -> deque[Submission]:
        if (latest := self._by_identity) is not None and latest[0] is partition:
            return latest[1]  # the usual case: a task hands the same dict again and again
        entry = self._queues.get(name := canonical(partition))
        if entry is None:
            entry = self._queues[name] = (partition, deque())
        self._by_identity = (partition, entry[1])
        return entry[1]
