"""The broker's fetch sessions, linked to the partitions that they fetch and to their delayed requests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessionCache, Key
from headrace_broker.server.network.purgatory import Purgatory
from headrace_broker.server.replicas.partitions import Partition, PartitionTable


class FetchSessionTable:
    """Links fetch sessions and partitions: each partition has a list of the sessions that fetch it.

    All methods run on the event loop.
    """

    def __init__(self, slots: int, rng: Random, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._sessions = FetchSessionCache(slots, rng, self._on_session_closed)
        self._partitions: dict[FetchSession, dict[Key, Partition]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: FetchRequest, replica_id: int) -> FetchSession | None:
        """Return the session of a request, or None if the request is a full fetch without a session. Raises ApiError.

        If an earlier request of the session is still delayed, this method completes the earlier request first.
        """
        session = self._sessions.get_or_create(request, replica_id, self._purgatory.now_ms())
        if session is not None and self._purgatory.is_watched(session):
            self._purgatory.force_complete_now(session)
        return session

    def update(self, session: FetchSession, request: FetchRequest, table: PartitionTable) -> None:
        """Add to the session the partitions that the request adds, and remove those that the request forgets."""
        added, removed = session.update(request)
        held = self._partitions.setdefault(session, {})
        for key in removed:
            self._detach(session, held.pop(key, None))
        for key in added:
            self.attach(session, key, table)

    def attach(self, session: FetchSession, key: Key, table: PartitionTable) -> Partition | None:
        """Link the session to the partition, unless the session was closed.

        Return the partition, or None if it is not on this broker.
        """
        partition = table.by_id.get(key[0], {}).get(key[1])
        held = self._partitions.get(session)
        if partition is not None and held is not None and held.get(key) is not partition:
            self._detach(session, held.get(key))
            held[key] = partition
            partition.sessions.append(session)
        return partition

    def has_nothing_for_replica(self, session: FetchSession, leader: int) -> bool:
        """Return whether the broker `leader` has nothing to send immediately to the follower that opened `session`.

        This is the case if the follower has all records of its partitions, the follower has reported this to the
        leader, and no consumer reads from the follower. If consumers read from the follower, it must receive a new high
        watermark immediately. The result is False for the session of a consumer.
        """
        if session.replica_id < 0:
            return False
        held = self._partitions.get(session, {})
        for key in session.dirty_partitions:
            wanted, partition = session.partitions.get(key), held.get(key)
            if (
                wanted is None
                or partition is None
                or not wanted.is_fetch_state_recorded
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

    def _on_session_closed(self, session: FetchSession) -> None:
        for partition in self._partitions.pop(session, {}).values():
            self._detach(session, partition)

    # -- changes of partitions ---------------------------------------------------------------------------------------

    def on_append(
        self, partition: Partition, size_bytes: int, is_throttled: Callable[[int], bool] | None = None
    ) -> None:
        """Mark the partition dirty in the sessions of followers that are not throttled.

        `size_bytes` is the size of the appended records. `is_throttled` returns whether a follower, given by its broker
        id, is throttled. If it is None, no follower is throttled. The sessions of consumers are updated when the high
        watermark advances.
        """
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            if session.replica_id >= 0 and (is_throttled is None or not is_throttled(session.replica_id)):
                self._mark_dirty_and_try_complete(session, key, size_bytes)

    def on_high_watermark_advanced(self, partition: Partition, size_bytes: int) -> None:
        """Mark the partition dirty, and try to complete the delayed requests of consumers.

        `size_bytes` is the approximate size of the newly committed records. A follower receives the new high
        watermark with its next response, or immediately if consumers read from it.
        """
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            if session.replica_id < 0:
                self._mark_dirty_and_try_complete(session, key, size_bytes)
                continue
            session.mark_dirty(key)
            if partition.replicas is not None and partition.replicas.serves_consumers(session.replica_id):
                self._purgatory.force_complete(session)

    def _mark_dirty_and_try_complete(self, session: FetchSession, key: Key, size_bytes: int) -> None:
        session.mark_dirty(key)
        if self._purgatory.is_watched(session):
            self._purgatory.try_complete(session, 0, size_bytes)

    def force_complete(self, partition: Partition) -> None:
        """Complete the delayed requests for a partition whose leader changed or that was deleted."""
        key = (partition.topic_id, partition.index)
        for session in partition.sessions:
            session.mark_dirty(key)
            self._purgatory.force_complete(session)
