"""Fetch sessions (KIP-227), both sides: who fetches many partitions says once what it wants, then only what changes.

The broker's side: a session remembers every wanted partition and what the client was told last; a request and its
answer name only what differs.  Partitions that have news are marked by whoever makes the news, so that a fetch costs
what is new and not what is wanted.  The client's side, `SessionState`, works out what to name in the next request.

Pure; owned by the event loop of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from random import Random

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1
_EVICTION_AFTER_MS = 120_000

Key = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(slots=True)
class Wanted:
    """One partition of a session: what the client asks for, and what it was told last."""

    partition: FetchPartition
    high_watermark: int = -2
    log_start_offset: int = -2
    is_noted: bool = False
    """Whether the leader has taken note of how far this replica is."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """What one client wants; identity is equality, so that a session can be waited for."""

    session_id: int
    replica_id: int
    epoch: int = 1
    last_used_ms: int = 0
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    news: dict[Key, None] = field(default_factory=dict)
    """The partitions to look at, in the order in which they were marked."""

    def take(self, request: FetchRequest) -> tuple[list[Key], list[Key]]:
        """Take up what the request adds, changes and forgets: (keys that are new here, keys that went)."""
        added: list[Key] = []
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition)
                known = self.wanted.get(key)
                if known is None:
                    self.wanted[key] = Wanted(partition)
                    added.append(key)
                else:
                    known.partition = partition
                    known.is_noted = False
                self.news[key] = None
        gone: list[Key] = []
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                key = (forgotten.topic_id, index)
                if self.wanted.pop(key, None) is not None:
                    self.news.pop(key, None)
                    gone.append(key)
        return added, gone

    def mark(self, key: Key) -> None:
        """There is news of a partition; what is not wanted does not matter."""
        if key in self.wanted:
            self.news[key] = None

    def is_news(self, key: Key, answer: PartitionData) -> bool:
        """Whether the client has to be told this."""
        wanted = self.wanted[key]
        return (
            bool(answer.records)
            or answer.error_code != ErrorCode.NONE
            or answer.diverging_epoch.epoch >= 0
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != wanted.high_watermark
            or answer.log_start_offset != wanted.log_start_offset
        )

    def told(self, key: Key, answer: PartitionData) -> None:
        """The client is told this; after an error the next answer is news whatever it says."""
        wanted = self.wanted.get(key)
        if wanted is not None:
            failed = answer.error_code != ErrorCode.NONE
            wanted.high_watermark = -2 if failed else answer.high_watermark
            wanted.log_start_offset = -2 if failed else answer.log_start_offset

    def looked_at(self, key: Key, *, is_exhausted: bool) -> None:
        """The partition was read; when there is more, it goes behind the others."""
        self.news.pop(key, None)
        if not is_exhausted:
            self.news[key] = None


class FetchSessions:
    """The sessions of a broker: as many as there are slots; replicas are served before clients."""

    def __init__(self, slots: int, rng: Random, on_closed: Callable[[FetchSession], None]) -> None:
        self._slots = slots
        self._rng = rng
        self._on_closed = on_closed
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: FetchRequest, replica_id: int, now_ms: int) -> FetchSession | None:
        """The session that the request belongs to, made if it asks for one; None when it is to be answered in full.

        Raises ApiError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH.
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
        session.epoch = _after(session.epoch)
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def _open(self, replica_id: int, now_ms: int) -> FetchSession | None:
        if replica_id >= 0:
            self._close_all_of(replica_id)
        if len(self._sessions) >= self._slots and not self._make_room(replica_id, now_ms):
            return None
        session_id = self._rng.randrange(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, _EPOCH_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, replica_id, last_used_ms=now_ms)
        return session

    def _close_all_of(self, replica_id: int) -> None:
        """A replica begins anew when it gives a connection up, whose last request the network may bring much later.

        It would say that the replica is where it was then, until there is something new to tell it.
        """
        for session in [session for session in self._sessions.values() if session.replica_id == replica_id]:
            self._close(session.session_id)

    def _make_room(self, replica_id: int, now_ms: int) -> bool:
        for session in self._sessions.values():  # the least recently used comes first
            is_idle = now_ms - session.last_used_ms > _EVICTION_AFTER_MS
            if is_idle or (replica_id >= 0 and session.replica_id < 0):
                self._close(session.session_id)
                return True
        return False

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._on_closed(session)


class SessionState:
    """The client's side: what the broker knows of our wishes, and what the next request has to say."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._told: dict[Hashable, FetchPartition] = {}
        self._topic_ids: dict[Hashable, bytes] = {}

    def reset(self) -> None:
        """Begin anew: the next request says everything."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._told.clear()
        self._topic_ids.clear()

    @property
    def is_full(self) -> bool:
        """Whether the next request has to name every wanted partition."""
        return self.epoch == INITIAL_EPOCH

    def fill(
        self,
        request: FetchRequest,
        changed: Iterable[tuple[Hashable, bytes, FetchPartition]],
        gone: Iterable[Hashable],
    ) -> None:
        """Write into the request what it has to name: `changed` = (key, topic id, what is wanted of it).

        A partition may be gone under one key and wanted under another, for a broker that lost it and got it back: the
        broker that is asked takes up what is wanted first and would forget just that.
        """
        request.session_id, request.session_epoch = self.session_id, self.epoch
        topics: dict[bytes, FetchTopic] = {}
        named: set[Key] = set()
        for key, topic_id, wanted in changed:
            known = self._told.get(key)
            if known is not None and known.fetch_offset == wanted.fetch_offset and known == wanted:
                continue
            self._told[key] = wanted
            self._topic_ids[key] = topic_id
            named.add((topic_id, wanted.partition))
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id, partitions=[])).partitions.append(wanted)
        forgotten: dict[bytes, ForgottenTopic] = {}
        for key in gone:
            told = self._told.pop(key, None)
            if told is not None and not self.is_full:
                topic_id = self._topic_ids.pop(key)
                if (topic_id, told.partition) in named:
                    continue
                topic = forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[]))
                topic.partitions.append(told.partition)
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(forgotten.values())

    def nudge(self, request: FetchRequest) -> bool:
        """Make of the request one that asks for nothing, behind one that waits: the broker then answers that.

        False where there is no session to send it in.
        """
        if self.is_full:
            return False
        request.session_id, request.session_epoch = self.session_id, _after(self.epoch)
        request.max_wait_ms = request.min_bytes = request.max_bytes = 0
        self.epoch = _after(self.epoch)
        return True

    def answered(self, session_id: int) -> None:
        """The broker answered without an error of the session."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self.session_id = session_id
        self.epoch = _after(self.epoch)


def _after(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1
