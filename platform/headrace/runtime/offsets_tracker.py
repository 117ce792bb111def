"""Tracks which source offsets may be committed: those before the first unacknowledged record. This module does no I/O.

A task submits batches in the order in which it polled them. Acknowledgements arrive in any order. An offset is
committable when its batch and all earlier batches of the same source partition are acknowledged. Callers in different
threads must hold a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.stores.offset_keys import canonical

Offset = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A source partition and its offset; None removes the stored offset."""


class Submission:
    """A batch whose offset is committable after `parts` acknowledgements."""

    __slots__ = ("is_removal", "offset", "parts")

    def __init__(self, offset: Mapping[str, Any], parts: int, *, is_removal: bool = False) -> None:
        self.offset = offset
        self.parts = parts
        self.is_removal = is_removal

    @property
    def is_acknowledged(self) -> bool:
        """Whether all parts are acknowledged."""
        return self.parts <= 0

    def acknowledge(self) -> None:
        """Acknowledge one part, which was written or intentionally dropped."""
        self.parts -= 1


class OffsetsTracker:
    """The submissions of one task."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Mapping[str, Any], deque[Submission]]] = {}
        self._latest: tuple[Mapping[str, Any], deque[Submission]] | None = None

    def submit(self, partition: Mapping[str, Any], offset: Mapping[str, Any], parts: int) -> Submission:
        """Add a submission that needs `parts` acknowledgements. `parts` is 0 if no record is left to send.

        The partition and the offset are copied, because a task may change and reuse its dicts.
        """
        submission = Submission(dict(offset) if offset else offset, parts)
        self._queue(partition).append(submission)
        return submission

    def submit_removal(self, partition: Mapping[str, Any]) -> None:
        """Add a submission that, after all earlier submissions, removes the stored offset of the partition."""
        self._queue(partition).append(Submission({}, 0, is_removal=True))

    def committable(self) -> list[Offset]:
        """Remove and return the newly committable offsets, at most one per source partition.

        A batch without an offset delays the offsets of later batches, but does not change the committable offset.
        """
        self._latest = None  # the queue in it may be removed below
        offsets: list[Offset] = []
        for name, (partition, queue) in list(self._queues.items()):
            last: Submission | None = None
            while queue and queue[0].is_acknowledged:
                submission = queue.popleft()
                if submission.offset or submission.is_removal:
                    last = submission
            if last is not None:
                offsets.append((partition, None if last.is_removal else last.offset))
            if not queue:
                del self._queues[name]
        return offsets

    def unacknowledged(self) -> int:
        """Return the number of submissions that still need acknowledgements."""
        return sum(not submission.is_acknowledged for _, queue in self._queues.values() for submission in queue)

    def _queue(self, partition: Mapping[str, Any]) -> deque[Submission]:
        if (latest := self._latest) is not None and latest[0] == partition:
            return latest[1]  # the usual case: all batches of a task have the same source partition
        entry = self._queues.get(name := canonical(partition))
        if entry is None:
            entry = self._queues[name] = (dict(partition), deque())
        self._latest = entry
        return entry[1]
