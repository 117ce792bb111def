"""Which source offsets may be committed: those of the contiguous acknowledged prefix, per source partition. Pure.

A task submits what it sends in order; acknowledgements come in any order. An offset is committable once its submission
and all earlier ones of the same source partition are acknowledged. `submit` belongs to the task's thread,
`acknowledge` and `committable` to the loop's: they share only append, popleft and a flag, which are atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.stores.offset_keys import canonical

Offsets = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


class Submission:
    """Records sent together; `parts` acknowledgements complete it."""

    __slots__ = ("offset", "parts")

    def __init__(self, offset: Mapping[str, Any], parts: int) -> None:
        self.offset = offset
        self.parts = parts

    def acknowledge(self) -> None:
        """One part has been written, or was dropped on purpose."""
        self.parts -= 1


class OffsetsTracker:
    """The submissions of one task."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Mapping[str, Any], deque[Submission]]] = {}
        self._by_identity: tuple[Mapping[str, Any], deque[Submission]] | None = None

    def submit(self, partition: Mapping[str, Any], offset: Mapping[str, Any], parts: int) -> Submission:
        """Note what is about to be sent: `parts` acknowledgements will follow (0: nothing left to send)."""
        submission = Submission(offset, parts)
        self._queue(partition).append(submission)
        return submission

    def committable(self) -> Offsets:
        """Take the offsets that became committable since the last call: one for each partition that moved."""
        offsets: Offsets = []
        for partition, queue in list(self._queues.values()):
            last: Submission | None = None
            while queue and queue[0].parts <= 0:
                last = queue.popleft()
            if last is not None:
                offsets.append((partition, last.offset))
        return offsets

    def pending(self) -> int:
        """Submissions that wait for acknowledgement or commit."""
        return sum(len(queue) for _, queue in list(self._queues.values()))

    def unacknowledged(self) -> int:
        """Submissions of which some part is not acknowledged."""
        return sum(submission.parts > 0 for _, queue in list(self._queues.values()) for submission in list(queue))

    def _queue(self, partition: Mapping[str, Any]) -> deque[Submission]:
        if (latest := self._by_identity) is not None and latest[0] is partition:
            return latest[1]  # the usual case: a task hands the same dict again and again
        entry = self._queues.get(name := canonical(partition))
        if entry is None:
            entry = self._queues[name] = (partition, deque())
        self._by_identity = (partition, entry[1])
        return entry[1]
