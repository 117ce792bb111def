"""Incremental fetch sessions (KIP-227), for the broker and for the fetching replica.

On the broker, a session caches every partition that the client fetches, and the values last sent to the client.
Therefore requests and responses contain only the partitions that have changed. Code that changes a partition marks the
partition as dirty in each session that contains it. The cost of a fetch is proportional to the number of dirty
partitions.

On the fetching replica, `FetchSessionHandler` computes the partitions that the next request must contain.

This module does no I/O. Only the broker's event loop uses it, so there are no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from random import Random

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1
_EVICTION_AFTER_MS = 120_000

Key = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(slots=True)
class CachedPartition:
    """One partition of a session.

    It holds the client's latest request for this partition, and the values last sent to the client.
    """

    partition: FetchPartition
    high_watermark: int = -2
    log_start_offset: int = -2
    is_fetch_state_recorded: bool = False
    """Whether the leader has updated the replica's log end offset to this fetch offset."""
    topic: str = ""
    """The name of the topic when the partition was read, or "" if the topic id has never been in the metadata."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that one client fetches. Sessions are compared by identity, so they can be dictionary keys."""

    session_id: int
    replica_id: int
    epoch: int = 1
    last_used_ms: int = 0
    partitions: dict[Key, CachedPartition] = field(default_factory=dict)
    dirty_partitions: dict[Key, None] = field(default_factory=dict)
    """The partitions to read for the next response, in this order.

    A partition that returns records moves to the end (KIP-227). All other partitions keep their places, so each dirty
    partition eventually becomes the first one. The first batch of a response may exceed all size limits.
    """

    def update(self, request: FetchRequest) -> tuple[list[Key], list[Key]]:
        """Apply the partitions that the request adds, changes and forgets; return (added keys, removed keys)."""
        added: list[Key] = []
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition)
                cached = self.partitions.get(key)
                if cached is None:
                    self.partitions[key] = CachedPartition(partition)
                    added.append(key)
                else:
                    cached.partition = partition
                    cached.is_fetch_state_recorded = False
                self.dirty_partitions[key] = None
        removed: list[Key] = []
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                key = (forgotten.topic_id, index)
                if self.partitions.pop(key, None) is not None:
                    self.dirty_partitions.pop(key, None)
                    removed.append(key)
        return added, removed

    def mark_dirty(self, key: Key) -> None:
        """Mark a changed partition as dirty, if the session contains the partition."""
        if key in self.partitions:
            self.dirty_partitions[key] = None

    def has_changed(self, key: Key, data: PartitionData) -> bool:
        """Whether the response must contain `data`, because `data` differs from the values last sent to the client."""
        cached = self.partitions[key]
        return (
            bool(data.records)
            or data.error_code != ErrorCode.NONE
            or data.diverging_epoch.epoch >= 0
            or data.preferred_read_replica >= 0
            or data.high_watermark != cached.high_watermark
            or data.log_start_offset != cached.log_start_offset
        )

    def mark_sent(self, key: Key, data: PartitionData) -> None:
        """Store the high watermark and the log start offset that were sent to the client for the partition `key`.

        `data` is the part of the response for this partition. If `data` has an error code, the next response contains
        the partition again. If `data` has records, move the partition behind the other dirty partitions.
        """
        cached = self.partitions.get(key)
        if cached is not None:
            failed = data.error_code != ErrorCode.NONE
            cached.high_watermark = -2 if failed else data.high_watermark
            cached.log_start_offset = -2 if failed else data.log_start_offset
            if data.records and key in self.dirty_partitions:
                del self.dirty_partitions[key]
                self.dirty_partitions[key] = None

    def mark_read(self, key: Key, *, is_exhausted: bool) -> None:
        """Update the dirty partitions after the partition was read.

        If `is_exhausted` is True, the partition becomes clean. Otherwise the log has more records, so the partition
        stays dirty and keeps its place. The records that were read may never be sent: if there are too few, the fetch
        waits and then reads again. Therefore only `mark_sent` moves a partition to the end.
        """
        if is_exhausted:
            self.dirty_partitions.pop(key, None)


class FetchSessionCache:
    """The fetch sessions of a broker, at most `slots` of them.

    A follower's new session may evict a consumer's session.
    """

    def __init__(self, slots: int, rng: Random, on_closed: Callable[[FetchSession], None]) -> None:
        self._slots = slots
        self._rng = rng
        self._on_closed = on_closed
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get_or_create(self, request: FetchRequest, replica_id: int, now_ms: int) -> FetchSession | None:
        """Return the session of a fetch request, or None for a fetch without a session.

        If the request opens a session, create the session. Raises ApiError FETCH_SESSION_ID_NOT_FOUND or
        INVALID_FETCH_SESSION_EPOCH.
        """
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._close(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._open(replica_id, now_ms)
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != replica_id:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = _next_epoch(session.epoch)
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def _open(self, replica_id: int, now_ms: int) -> FetchSession | None:
        if replica_id >= 0:
            self._close_sessions_of_replica(replica_id)
        if len(self._sessions) >= self._slots and not self._evict_one(replica_id, now_ms):
            return None
        session_id = self._rng.randrange(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, _EPOCH_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, replica_id, last_used_ms=now_ms)
        return session

    def _close_sessions_of_replica(self, replica_id: int) -> None:
        """Close the earlier sessions of a replica that opens a new session, for example after a disconnection.

        The last request on the closed connection may be processed late. If the replica's earlier session still existed,
        this request would set the replica's log end offset to an old fetch offset. This offset would remain until the
        partition changes again, because the new session omits unchanged partitions.
        """
        for session in [session for session in self._sessions.values() if session.replica_id == replica_id]:
            self._close(session.session_id)

    def _evict_one(self, replica_id: int, now_ms: int) -> bool:
        for session in self._sessions.values():  # the least recently used session is first
            is_idle = now_ms - session.last_used_ms > _EVICTION_AFTER_MS
            if is_idle or (replica_id >= 0 and session.replica_id < 0):
                self._close(session.session_id)
                return True
        return False

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._on_closed(session)


class FetchSessionHandler:
    """A client's fetch session with one broker; computes the partitions that the next request must contain."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._sent_partitions: dict[Hashable, FetchPartition] = {}
        self._topic_ids: dict[Hashable, bytes] = {}

    def reset(self) -> None:
        """Forget the session, so that the next request is a full fetch that opens a new session."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._sent_partitions.clear()
        self._topic_ids.clear()

    @property
    def is_next_request_full(self) -> bool:
        """Whether the next request must contain every partition."""
        return self.epoch == INITIAL_EPOCH

    def fill(
        self,
        request: FetchRequest,
        changed: Iterable[tuple[Hashable, bytes, FetchPartition]],
        removed: Iterable[Hashable],
    ) -> None:
        """Set the request's session fields and partitions. `changed` items are (key, topic id, partition to fetch).

        If a replica was moved away from this broker and back, `removed` and `changed` may contain the same partition
        under different keys. Do not add such a partition to forgotten_topics_data: the leader first adds the partitions
        of a request and then removes the forgotten partitions, so it would remove the added partition.
        """
        request.session_id, request.session_epoch = self.session_id, self.epoch
        topics: dict[bytes, FetchTopic] = {}
        included: set[Key] = set()
        for key, topic_id, partition in changed:
            sent = self._sent_partitions.get(key)
            if sent is not None and sent.fetch_offset == partition.fetch_offset and sent == partition:
                continue
            self._sent_partitions[key] = partition
            self._topic_ids[key] = topic_id
            included.add((topic_id, partition.partition))
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id, partitions=[])).partitions.append(partition)
        forgotten: dict[bytes, ForgottenTopic] = {}
        for key in removed:
            sent = self._sent_partitions.pop(key, None)
            if sent is not None and not self.is_next_request_full:
                topic_id = self._topic_ids.pop(key)
                if (topic_id, sent.partition) in included:
                    continue
                topic = forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[]))
                topic.partitions.append(sent.partition)
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(forgotten.values())

    def fill_wake_up(self, request: FetchRequest) -> bool:
        """Make `request` an empty fetch of this session, so that the broker responds to the session's delayed fetch.

        Return False, and change nothing, if no session exists yet.
        """
        if self.is_next_request_full:
            return False
        request.session_id, request.session_epoch = self.session_id, _next_epoch(self.epoch)
        request.max_wait_ms = request.min_bytes = request.max_bytes = 0
        self.epoch = _next_epoch(self.epoch)
        return True

    def on_response(self, session_id: int) -> None:
        """Store the session id and increment the session epoch after a response without a session error."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self.session_id = session_id
        self.epoch = _next_epoch(self.epoch)


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1
