"""Finds the unread objects in a bucket with arbitrary object keys (``mode=GENERIC``).

Objects are read in the order of their modification times, and in the order of their keys if the times are equal. A hash
of the key assigns each object to one of `SLOTS` source partitions. The source partitions are numbered. The number of a
source partition is called the slot. Each source offset contains the last object that was read. The number of source
offsets does not depend on the number of objects. An object is read only when it is at least
``file.discovery.settle.ms`` old by the clock of the store, so that objects that appear at about the same time are read
in order. A search lists all object keys, and keeps the `BATCH_MAX` unread objects with the earliest modification times.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

SLOTS = 64
BATCH_MAX = 100_000

FilePosition = Mapping[str, Any]
"""A source offset: `modified` (ms), `object`, `record` (number of records read) and `complete`."""


class FoundFile(NamedTuple):
    """An object to read."""

    modified_ms: int
    key: str
    topic: str
    done: int
    """The number of records that are already read."""

    @property
    def slot(self) -> int:
        """The number of the object's source partition (see `slot_of`)."""
        return slot_of(self.key)


def slot_of(key: str) -> int:
    """Return the slot of the object with this key. The slot is the number of the object's source partition.

    The slot is computed as the key's hash modulo the number of source partitions.
    """
    return crc32(key.encode()) % SLOTS


class FileFinder:
    """Finds the objects that are assigned to one task. The hash of an object's key determines the task."""

    def __init__(
        self,
        list_page: Callable[..., Any],
        prefixes: Sequence[str],
        topic_of: Callable[[str], str | None],
        positions: Mapping[int, FilePosition],
        share: tuple[int, int] = (0, 1),
        starting_ms: int = 0,
        settle_ms: int = 0,
    ) -> None:
        """Create a finder that lists objects with `list_page`.

        Each object belongs to a source partition (see `slot_of`). `positions` maps the number of each source partition
        to its stored source offset. `share` is (index of this task, number of tasks).

        Only objects with one of the key prefixes `prefixes` are read. No prefix may begin with another prefix.
        `topic_of` returns the topic for an object's key, or None to skip the object. Objects that were modified before
        `starting_ms` are skipped. An object is read only when it is at least `settle_ms` old.
        """
        self._list = list_page
        self._prefixes = prefixes
        self._topic_of = topic_of
        self._task, self._tasks = share
        self._last: dict[int, tuple[int, str, int | None]] = {}
        """Maps slots to the last object: its modification time, its key, and the number of records that were read.

        The number of records is None if the object was read to its end.
        """
        for slot, position in positions.items():
            done = None if position.get("complete") else int(position["record"])
            self._last[slot] = (int(position["modified"]), str(position["object"]), done)
        self._starting_ms = starting_ms
        self._settle_ms = settle_ms
        self._pending: deque[FoundFile] = deque()
        self._has_more = False

    def next_object(self) -> FoundFile | None:
        """Return the next object that `find` has found, or None if there are no more."""
        if not self._pending and self._has_more:
            self.find()
        if not self._pending:
            return None
        found = self._pending.popleft()
        self._last[found.slot] = (found.modified_ms, found.key, None)
        return found

    def find(self) -> None:
        """List the bucket's objects. Call `find` when `next_object` has returned None."""
        found = heapq.nsmallest(BATCH_MAX + 1, self._new_objects())
        self._has_more = len(found) > BATCH_MAX
        self._pending = deque(found[:BATCH_MAX])

    def _new_objects(self) -> Iterator[FoundFile]:
        for prefix in self._prefixes:
            token: str | None = None
            while True:
                page = self._list(prefix, "", None, token)
                for key, modified_ms in page.objects:
                    found = self._if_new(key, modified_ms, page.server_ms)
                    if found is not None:
                        yield found
                token = page.token
                if token is None:
                    break

    def _if_new(self, key: str, modified_ms: int, server_ms: int) -> FoundFile | None:
        slot = slot_of(key)
        if slot % self._tasks != self._task or modified_ms < self._starting_ms:
            return None
        if server_ms - modified_ms < self._settle_ms or key.endswith("/"):  # consoles create such keys for folders
            return None
        done = 0
        last = self._last.get(slot)
        if last is not None and (modified_ms, key) <= last[:2]:
            if (modified_ms, key) != last[:2] or last[2] is None:
                return None
            done = last[2]
        topic = self._topic_of(key)
        return None if topic is None else FoundFile(modified_ms, key, topic, done)
