"""Finds the unread objects that an S3 sink has written, in the order in which they must be read.

A source partition consists of the objects of one topic partition in one folder. The finder walks through the folders
below ``topics.dir`` to find all source partitions. It skips the objects that have been read, and lists at most
`PENDING_MAX` objects of a source partition in advance. The time and memory of a walk therefore depend on the number of
source partitions and of new objects, but not on the number of all objects. The objects of a topic partition are read in
the order of their first offsets, across all folders.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from headrace_connectors.s3.object_names import (
    BackupName,
    BackupNames,
    SourcePartition,
    after_all_objects,
    after_position,
    is_padded,
)

PENDING_MAX = 1000

Position = Mapping[str, Any]
"""The source offset of a source partition: `start` (the digits of the first offset in the object's name), `record` (the
number of records that were read), `complete` (whether the object was read to its end)."""


class ListedKeys(Protocol):
    """A page of a listing. See `headrace_connectors.s3.bucket.Page`."""

    @property
    def objects(self) -> Sequence[Any]: ...
    @property
    def folders(self) -> Sequence[str]: ...
    @property
    def token(self) -> str | None: ...


ListPage = Callable[..., ListedKeys]
"""`Bucket.list_page`, with the arguments prefix, delimiter, start_after and token."""


class BackupObject(NamedTuple):
    """The S3 objects of the same records: one with the values, one with the keys, and one with the headers.

    Some of the three objects may be missing.
    """

    source_partition: SourcePartition
    start: str
    values: str | None
    """The S3 key of the object with the values, or None if the values of these records are null."""
    keys: str | None
    """The S3 key of the object with the record keys, or None if there is no such object."""
    headers: str | None
    """The S3 key of the object with the record headers, or None if there is no such object."""
    done: int
    """The number of records that are already read."""


@dataclass(slots=True)
class _PartitionState:
    id: SourcePartition
    prefix: str
    position: Position | None
    pending: deque[tuple[str, dict[str, str]]] = field(default_factory=deque)
    """For each first offset, its digits and the object keys by side, sorted by offset; see `BackupName.side`."""
    has_more: bool = False
    """Whether the listing has more objects after the pending ones."""

    def is_read(self, start: str) -> bool:
        """Whether all records of the object with the first offset `start` have been read."""
        if self.position is None:
            return False
        last, number = int(self.position["start"]), int(start)
        return number < last or (number == last and bool(self.position.get("complete")))

    def resume_key(self) -> str | None:
        """Return a key that sorts before the keys of all unread objects, or None if no object has been read."""
        if self.position is None:
            return None
        start = str(self.position["start"])
        if self.position.get("complete"):
            return after_position(self.prefix, start)
        return self.prefix + start if is_padded(start) else self.prefix


class BackupFinder:
    """Finds the objects of the topic partitions that are assigned to one task."""

    def __init__(
        self,
        list_page: ListPage,
        names: BackupNames,
        root: str,
        delimiter: str,
        read_positions: Callable[[Sequence[SourcePartition]], Sequence[Position | None]],
        share: tuple[int, int] = (0, 1),
        prefixes: Sequence[str] = (),
        tombstones: str = "tombstone",
    ) -> None:
        """Create a finder that lists objects with `list_page`, and parses their names with `names`.

        `root` is ``topics.dir`` with a delimiter at the end. `share` is (index of this task, number of tasks).

        A source partition consists of the objects of one topic partition in one folder. `read_positions` returns one
        element for each given source partition: the stored source offset, or None.

        If `prefixes` is not empty, only objects with one of these key prefixes are read. No prefix may begin with
        another prefix. `tombstones` is the name of the folders for records with null values. These folders contain only
        objects with record keys and record headers.
        """
        self._list = list_page
        self._names = names
        self._root = root
        self._delimiter = delimiter
        self._read_positions = read_positions
        self._task, self._tasks = share
        self._prefixes = prefixes
        self._tombstones = tombstones
        self._states: dict[SourcePartition, _PartitionState] = {}
        self._ready: dict[tuple[str, int], list[tuple[int, SourcePartition]]] = {}
        """For each topic partition, a heap of the source partitions with pending objects."""
        self._turns: deque[tuple[str, int]] = deque()

    def next_object(self) -> BackupObject | None:
        """Return the next object that `find` has found, or None if there are no more.

        The finder alternates between the topic partitions.
        """
        while self._turns:
            turn = self._turns[0]
            heap = self._ready[turn]
            if not heap:
                del self._ready[turn]
                self._turns.popleft()
                continue
            state = self._states[heap[0][1]]
            if len(state.pending) == 1 and state.has_more:
                self._list_more(state)
            heapq.heappop(heap)
            if not state.pending:  # the object was deleted
                continue
            start, sides = state.pending.popleft()
            self._make_ready(state)
            self._turns.rotate(-1)
            if "" not in sides and not ("keys" in sides and self._has_tombstones(state.id.folder)):
                continue  # the sink has not uploaded the values yet: it uploads them after the keys and headers
            done = 0
            if state.position is not None and int(state.position["start"]) == int(start):
                done = int(state.position["record"])
            state.position = {"start": start, "record": done, "complete": True}
            return BackupObject(state.id, start, sides.get(""), sides.get("keys"), sides.get("headers"), done)
        return None

    def find(self) -> None:
        """Search all folders for new objects. Call `find` when `next_object` has returned None."""
        for prefix in self._prefixes or (self._root,):
            self._find_in_topics(prefix)

    def _find_in_topics(self, prefix: str) -> None:
        if prefix != self._root and prefix.startswith(self._root):
            self._walk(prefix, prefix[len(self._root) :].split(self._delimiter, 1)[0])
            return
        for topic_folder in self._subfolders(prefix):
            self._walk(topic_folder, topic_folder[len(prefix) : -len(self._delimiter)])

    def _subfolders(self, prefix: str) -> list[str]:
        found: list[str] = []
        token: str | None = None
        while True:
            page = self._list(prefix, self._delimiter, None, token)
            found += page.folders
            token = page.token
            if token is None:
                return found

    def _walk(self, topic_folder: str, topic: str) -> None:
        folders = [topic_folder]
        while folders:
            folders += self._list_folder(folders.pop(0), topic)

    def _list_folder(self, folder: str, topic: str) -> list[str]:
        """Add the new objects of a folder to their source partitions, and return the folder's subfolders."""
        subfolders: list[str] = []
        start_after: str | None = None
        token: str | None = None
        touched: set[SourcePartition] = set()
        while True:
            page = self._list(folder, self._delimiter, start_after, token)
            subfolders += page.folders
            last = self._add_page(folder, topic, page, touched)
            if page.token is None:
                break
            token, start_after = page.token, None
            jump = None if last is None else self._jump(last, page.objects[-1].key)
            if jump is not None:
                token, start_after = None, jump
        for source_partition in touched:
            self._make_ready(self._states[source_partition])
        return subfolders

    def _add_page(
        self, folder: str, topic: str, page: ListedKeys, touched: set[SourcePartition]
    ) -> SourcePartition | None:
        """Add the objects of a page of the folder to their source partitions, and add these to `touched`.

        Return the source partition of the page's last object, or None if the sink writes no object with such a name.
        """
        parsed: list[tuple[SourcePartition, BackupName, str]] = []
        last: SourcePartition | None = None
        unknown: dict[SourcePartition, None] = {}
        for item in page.objects:
            name = self._names.parse(item.key[len(folder) :], topic)
            last = None
            if name is None:
                continue
            last = SourcePartition(folder, topic, name.partition)
            if self._is_mine(last):
                parsed.append((last, name, item.key))
                if last not in self._states:
                    unknown[last] = None
        for source_partition, position in zip(
            unknown, self._read_positions(list(unknown)) if unknown else (), strict=True
        ):
            self._states[source_partition] = _PartitionState(
                source_partition, self._names.prefix(source_partition), position
            )
        for source_partition, name, key in parsed:
            self._add(self._states[source_partition], name, key)
            touched.add(source_partition)
        return last

    def _add(self, state: _PartitionState, name: BackupName, key: str) -> None:
        pending = state.pending
        if state.is_read(name.offset) or state.has_more:
            return
        if pending and pending[-1][0] == name.offset:
            pending[-1][1][name.side] = key
        elif len(pending) >= PENDING_MAX and all(is_padded(text) for text in (pending[-1][0], name.offset)):
            state.has_more = True
        else:
            pending.append((name.offset, {name.side: key}))

    def _jump(self, source_partition: SourcePartition, last_key: str) -> str | None:
        """Return the key after which the listing of a folder can continue, or None if it cannot skip any keys.

        `last_key` is the key of the object that was listed last. The object belongs to `source_partition`. The listing
        skips all keys between `last_key` and the returned key.
        """
        state = self._states.get(source_partition)
        if state is None:  # a source partition of another task
            return after_all_objects(self._names.prefix(source_partition))
        if state.has_more:
            return after_all_objects(state.prefix)
        resume = state.resume_key()
        return resume if resume is not None and resume > last_key else None

    def _list_more(self, state: _PartitionState) -> None:
        """List the last pending object again, and the objects after it.

        The objects with the keys and headers of the last pending object may not have been listed yet.
        """
        start, _ = state.pending.pop()
        state.has_more = False
        start_after: str | None = state.prefix + start
        token: str | None = None
        while not state.has_more:
            page = self._list(state.prefix, "", start_after, token)
            for item in page.objects:
                name = self._names.parse(item.key[len(state.id.folder) :], state.id.topic)
                if name is not None:
                    self._add(state, name, item.key)
            token, start_after = page.token, None
            if token is None:
                break
        self._sort(state)

    @staticmethod
    def _sort(state: _PartitionState) -> None:
        if any(not is_padded(start) for start, _ in state.pending):
            state.pending = deque(sorted(state.pending, key=lambda each: int(each[0])))

    def _make_ready(self, state: _PartitionState) -> None:
        if not state.pending:
            return
        self._sort(state)
        turn = (state.id.topic, state.id.partition)
        if turn not in self._ready:
            self._ready[turn] = []
            self._turns.append(turn)
        heapq.heappush(self._ready[turn], (int(state.pending[0][0]), state.id))

    def _has_tombstones(self, folder: str) -> bool:
        return folder.endswith(f"{self._delimiter}{self._tombstones}{self._delimiter}")

    def _is_mine(self, source_partition: SourcePartition) -> bool:
        return (crc32(source_partition.topic.encode()) + source_partition.partition) % self._tasks == self._task
