"""The broker's fetch sessions, joined with the partitions that make news for them and the requests that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessions, Key
from headrace_broker.server.network.waiting import Waiting
from headrace_broker.server.replicas.partitions import Partition, PartitionTable


class FetchSessionTable:
    """Owned by the event loop; each partition knows the sessions that want it."""

    def __init__(self, slots: int, rng: Random, waiting: Waiting) -> None:
        self._waiting = waiting
        self._sessions = FetchSessions(slots, rng, self._closed)
        self._partitions: dict[FetchSession, dict[Key, Partition]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: FetchRequest, replica_id: int) -> FetchSession | None:
        """The session of a request, None when it is to be answered in full.  Raises ApiError.

        A request of the session that still waits is answered before the next one is looked at.
        """
        session = self._sessions.find(request, replica_id, self._waiting.now_ms())
        if session is not None and self._waiting.waiting_for(session):
            self._waiting.complete(session)
        return session

    def take(self, session: FetchSession, request: FetchRequest, table: PartitionTable) -> None:
        """Take up what the request wants and wants no more."""
        added, gone = session.take(request)
        held = self._partitions.setdefault(session, {})
        for key in gone:
            self._detach(session, held.pop(key, None))
        for key in added:
            self.attach(session, key, table)

    def attach(self, session: FetchSession, key: Key, table: PartitionTable) -> Partition | None:
        """Have a wanted partition tell the session its news, if it is here; one that was closed hears of none."""
        partition = table.by_id.get(key[0], {}).get(key[1])
        held = self._partitions.get(session)
        if partition is not None and held is not None and held.get(key) is not partition:
            self._detach(session, held.get(key))
            held[key] = partition
            partition.sessions.append(session)
        return partition

    def has_nothing_for_replica(self, session: FetchSession, leader: int) -> bool:
        """Whether a replica has all that its partitions hold, and the leader knows it.

        A high watermark that moved can wait, unless consumers read from that replica.
        """
        if session.replica_id < 0:
            return False
        held = self._partitions.get(session, {})
        for key in session.news:
            wanted, partition = session.wanted.get(key), held.get(key)
            if (
                wanted is None
                or partition is None
                or not wanted.is_noted
                or partition.leader != leader
                or partition.leader_epoch != wanted.partition.current_leader_epoch
                or partition.log.log_end_offset != wanted.partition.fetch_offset
                or partition.replicas is None
                or partition.replicas.serves_consumers(session.replica_id)
            ):
                return False
        return True

    def _detach(self, session: FetchSession, partition: Partition | None) -> None:
        if partition is not None and session in partition.sessions:
            partition.sessions.remove(session)

    def _closed(self, session: FetchSession) -> None:
        for partition in self._partitions.pop(session, {}).values():
            self._detach(session, partition)

    # -- news --------------------------------------------------------------------------------------------------------

    def appended(
        self, partition: Partition, size_bytes: int, is_held_back: Callable[[int], bool] | None = None
    ) -> None:
        """Records were appended: news for replicas that may have them, and for consumers when they are committed."""
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            if session.replica_id >= 0 and (is_held_back is None or not is_held_back(session.replica_id)):
                self._tell(session, key, size_bytes)

    def committed(self, partition: Partition, size_bytes: int) -> None:
        """The high watermark moved: records for consumers.

        Replicas learn it with what they ask next, those that consumers read from at once.
        """
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            if session.replica_id < 0:
                self._tell(session, key, size_bytes)
                continue
            session.mark(key)
            if partition.replicas is not None and partition.replicas.serves_consumers(session.replica_id):
                self._waiting.disturbed(session)

    def _tell(self, session: FetchSession, key: Key, size_bytes: int) -> None:
        session.mark(key)
        if self._waiting.waiting_for(session):
            self._waiting.advanced(session, 0, size_bytes)

    def disturbed(self, partition: Partition) -> None:
        """The partition changed its leader or went: who wants it is answered."""
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            session.mark(key)
            self._waiting.disturbed(session)
