"""Fetch (1): read record batches, and wait for new batches while fewer than min_bytes bytes are available.

A response contains whole batches exactly as they are stored. The first batch contains the fetch offset, and is complete
even if it exceeds max_bytes. Records are never decoded.

Consumers may also fetch from a follower (KIP-392), up to the follower's high watermark. If replica.selector.class
selects a follower, the leader's response contains no records and names this follower as the preferred read replica.

An error in one partition completes the whole fetch, so that the client can react to the error. As in Kafka, this does
not apply to a partition that is not in the metadata, if the fetch has other partitions. Otherwise, a consumer of a
deleted topic would fetch in a loop without pauses. Unlike Kafka's leader, this broker responds to a follower
immediately: the follower may have received the metadata of a new partition earlier than the leader, and it backs off
before it fetches the partition again.

Version 7 adds fetch sessions (KIP-227). This broker supports fetch sessions from version 13 on. In versions 7 to 12 it
responds with session id 0, so that every request is a full fetch. Version 11 adds the consumer's rack. Version 12 adds
the last fetched epoch, so that the leader can detect a diverging log. Version 13 has topic ids instead of names,
version 15 moves the replica state to a tagged field, and version 16 adds the endpoints of current leaders (KIP-951).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.framing import encode_response
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace_broker.protocol.notation import Buffer
from headrace_broker.replication.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, Key
from headrace_broker.server.network.connection import Connection, ResponseSlot
from headrace_broker.server.network.fetch_codec import read_fetch_request
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

API_KEY = ApiKey.FETCH
VERSIONS = (4, 17)

_FIRST_VERSION_WITH_SESSIONS = 7
_FIRST_VERSION_WITH_RACK = 11
_FIRST_VERSION_WITH_IDS = 13
_FIRST_VERSION_WITH_STATE = 15
_FIRST_VERSION_WITH_LEADER_HINTS = 16
_READ_COMMITTED = 1
_UNRESOLVED = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The errors of partitions that are not in the metadata."""
_LARGE_FRAME_BYTES = 32 * 1024
_SESSION_REQUEST_BYTES = 256
_LARGE_WAIT_MS_MAX = 5000
_PARTITIONS_PER_CHUNK = 500
_FOLLOWER_RESPONSE_BYTES_MAX = 2 * 1024 * 1024
"""Size limit of a response to a follower.

The follower may send its next fetch only after it has appended the records, and produce requests with acks=all wait for
this next fetch.
"""

logger = logging.getLogger(__name__)


class _PartitionReads:
    """The results of reading the partitions of one request, and the limits for the size of the response.

    The limit `bytes_max` also limits `bytes_min`, because the response cannot become larger.
    """

    __slots__ = (
        "bytes_max",
        "bytes_min",
        "changed",
        "keys",
        "listener",
        "replica",
        "respond_now",
        "responses",
        "size_bytes",
        "throttled_bytes",
        "unresolved_count",
    )

    def __init__(self, listener: str, replica: int, bytes_min: int, bytes_max: int) -> None:
        self.listener = listener
        self.replica = replica
        """The id of the follower that sent the request, or -1 for a consumer."""
        self.responses: list[FetchableTopicResponse] = []
        self.size_bytes = 0
        self.bytes_max = bytes_max
        self.bytes_min = min(bytes_min, bytes_max)
        self.throttled_bytes = 0
        self.respond_now = False
        self.unresolved_count = 0
        """The number of partitions that are not in the metadata."""
        self.keys: list[Hashable] = []
        """The keys in the purgatory of the partitions that were read without an error."""
        self.changed: dict[Key, PartitionData] = {}

    @property
    def missing_bytes(self) -> int:
        """The number of bytes for which the fetch has to wait."""
        return self.bytes_min - self.size_bytes


def handle_frame(broker: Broker, connection: Connection, frame: memoryview, version: int, correlation_id: int) -> None:
    """Respond with the available records, or wait up to max_wait_ms for more."""
    if len(frame) > _LARGE_FRAME_BYTES:
        slot = connection.reserve_response_and_mute()
        work = partial(_handle_large, broker, connection, slot, bytes(frame), version, correlation_id)
        broker.router.run_for_connection(connection, API_KEY.name, work)
        return
    request = read_fetch_request(frame, version)
    if _has_session(request):
        try:
            session = _find_session(broker, connection, request, version)
        except ApiError as error:
            broker.on_partition_error(API_KEY, error.code, None)
            connection.reply(encode_response(correlation_id, FetchResponse(error_code=error.code), version))
            return
        if session is not None:
            _handle_session_fetch(broker, connection, session, request, version, correlation_id)
            return
    reads = _read(broker, connection, request, version)
    if not _must_wait(request, reads, reads.keys):
        connection.reply(_encode(broker, connection, reads, version, correlation_id))
        return
    slot = connection.reserve_response(len(frame))

    def complete() -> None:
        slot.fill(_encode(broker, connection, _read(broker, connection, request, version), version, correlation_id))

    broker.purgatory.watch_for_connection(
        connection, complete, reads.keys, request.max_wait_ms, missing_bytes=reads.missing_bytes
    )


def _must_wait(request: FetchRequest, reads: _PartitionReads, keys: list[Hashable]) -> bool:
    """Return whether the response must wait for more records. `keys` identify what the fetch can wait for."""
    return request.max_wait_ms > 0 and reads.missing_bytes > 0 and not reads.respond_now and bool(keys)


def _has_session(request: FetchRequest) -> bool:
    return request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION


def _find_session(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> FetchSession | None:
    """Return the session that the request creates or continues, or None for a full fetch without a session.

    A new session of a follower closes the follower's earlier sessions. If the request has a replica id, a session is
    created only if the broker with this id is registered.
    """
    if version < _FIRST_VERSION_WITH_IDS:
        if request.session_epoch > INITIAL_EPOCH:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return None
    replica = _replica_id(request, version)
    if replica >= 0:
        if not broker.replication.is_registered(replica, request.replica_state.replica_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        broker.router.connection_quotas.mark_replica(connection)
    session = broker.fetch_sessions.find(request, replica)
    if session is not None:
        if (
            replica < 0
            and len(session.partitions) + _partition_count(request) > broker.partitions.partitions_per_request_max
        ):
            logger.warning(
                "Connection from %s: rejecting the Fetch request, because its session would exceed the limit of %d "
                "partitions",
                connection.peer,
                broker.partitions.partitions_per_request_max,
            )
            raise ApiError(ErrorCode.INVALID_REQUEST)
        broker.fetch_sessions.update(session, request, broker.partitions)
    return session


def _partition_count(request: FetchRequest) -> int:
    return sum(len(topic.partitions) for topic in request.topics)


def _handle_session_fetch(
    broker: Broker, connection: Connection, session: FetchSession, request: FetchRequest, version: int, correlation: int
) -> None:
    """Respond with the session's changed partitions, or wait for changes. The first response has all partitions.

    A follower receives the first response immediately, because it contains the high watermarks. A consumer waits, as in
    Kafka: otherwise, a client that opens a session with each request would fetch in a loop without pauses.
    """
    missing_bytes = request.min_bytes
    is_first_of_follower = request.session_epoch == INITIAL_EPOCH and session.replica_id >= 0
    may_wait = request.max_wait_ms > 0 and bool(session.partitions) and not is_first_of_follower
    if may_wait and session.replica_id >= 0:
        _record_follower_offsets(broker, session, request, version)
        # before the reads, complete the produce requests that waited only for this follower
        broker.purgatory.complete_due()
    if not (may_wait and broker.fetch_sessions.has_nothing_for_replica(session, broker.node_id)):
        reads = _read_dirty_partitions(broker, connection, session, request, version)
        # an unresolved partition stays dirty, so `reads` contains all unresolved partitions of the session
        keys: list[Hashable] = [session] if reads.unresolved_count < len(session.partitions) else []
        if not (may_wait and _must_wait(request, reads, keys)):
            connection.reply(_encode_session_response(broker, connection, session, reads, version, correlation))
            return
        # these partitions were read but not sent, so the delayed response must read them again
        for key in reads.changed:
            session.mark_dirty(key)
        missing_bytes = reads.missing_bytes
    slot = connection.reserve_response(_SESSION_REQUEST_BYTES)

    def complete() -> None:
        reads = _read_dirty_partitions(broker, connection, session, request, version)
        slot.fill(_encode_session_response(broker, connection, session, reads, version, correlation))

    broker.purgatory.watch_for_connection(
        connection, complete, [session], request.max_wait_ms, missing_bytes=missing_bytes
    )


def _record_follower_offsets(broker: Broker, session: FetchSession, request: FetchRequest, version: int) -> None:
    """Store the follower's fetch offsets in the leader's state.

    This function ignores the error of a partition. A later read of the partition reports the error.
    """
    for topic in request.topics:
        for wanted in topic.partitions:
            try:
                partition = _find_partition(broker, topic, wanted.partition, version)
                if _check_epoch_and_divergence(broker, partition, wanted, session.replica_id, version) is None:
                    known = session.partitions[topic.topic_id, wanted.partition]
                    known.is_fetch_state_recorded = _record_follower_offset(
                        broker, partition, request, wanted, session.replica_id
                    )
            except ApiError:
                continue


def _new_reads(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> _PartitionReads:
    """Return the empty results of a request whose partitions have not been read yet."""
    replica = _replica_id(request, version)
    bytes_max = min(request.max_bytes, broker.config.fetch_max_bytes, broker.router.response_bytes_max())
    if replica >= 0:
        bytes_max = min(bytes_max, _FOLLOWER_RESPONSE_BYTES_MAX)
    return _PartitionReads(connection.listener, replica, request.min_bytes, bytes_max)


def _read_dirty_partitions(
    broker: Broker, connection: Connection, session: FetchSession, request: FetchRequest, version: int
) -> _PartitionReads:
    reads = _new_reads(broker, connection, request, version)
    for _ in _session_read_steps(broker, session, request, version, reads):
        pass
    return reads


def _session_read_steps(
    broker: Broker, session: FetchSession, request: FetchRequest, version: int, reads: _PartitionReads
) -> Iterator[None]:
    """Read the dirty partitions of the session. Yield after every `_PARTITIONS_PER_CHUNK` partitions.

    A partition is dirty if the next response may contain new data of the partition. In a new session, all partitions
    are dirty.
    """
    is_full = request.session_epoch == INITIAL_EPOCH
    topics: dict[bytes, FetchableTopicResponse] = {}
    for count, key in enumerate(list(session.dirty_partitions), 1):
        if reads.size_bytes >= reads.bytes_max and not is_full:
            break  # the remaining partitions stay dirty, and come first in the next response
        if count % _PARTITIONS_PER_CHUNK == 0:
            yield
        known = session.partitions.get(key)
        if known is None:
            continue  # the partition was removed from the session in the meantime
        wanted = known.partition
        partition = broker.fetch_sessions.attach(session, key, broker.partitions)
        if not known.topic:
            known.topic = broker.image.topic_names.get(key[0], "")
        topic = FetchTopic(topic=known.topic, topic_id=key[0])
        data = _read_partition(broker, request, topic, wanted, reads, version, is_noted=known.is_fetch_state_recorded)
        known.is_fetch_state_recorded = data.error_code == ErrorCode.NONE
        # If the next batch of a partition does not fit into the response, the partition returns no records, although
        # it has some. It keeps its place before the partitions that return records, so it is read first next time.
        end_offset = _readable_end_offset(partition, session.replica_id)
        is_exhausted = not data.records and wanted.fetch_offset >= end_offset
        session.mark_read(key, is_exhausted=is_exhausted and data.error_code == ErrorCode.NONE)
        has_changed = session.has_changed(key, data)
        if has_changed or is_full:
            reads.changed[key] = data
            topic_response = topics.setdefault(key[0], FetchableTopicResponse(topic_id=key[0], partitions=[]))
            topic_response.partitions.append(data)
        if has_changed and partition is not None and partition.replicas is not None:
            # If consumers read from this follower, send it a new high watermark immediately, even without records.
            reads.respond_now |= partition.replicas.serves_consumers(session.replica_id)
    reads.responses = list(topics.values())


def _encode_session_response(
    broker: Broker,
    connection: Connection,
    session: FetchSession,
    reads: _PartitionReads,
    version: int,
    correlation_id: int,
) -> list[Buffer]:
    _mark_sent(session, reads)
    return _encode(broker, connection, reads, version, correlation_id, session.session_id)


def _mark_sent(session: FetchSession, reads: _PartitionReads) -> None:
    for key, data in reads.changed.items():
        session.mark_sent(key, data)


def _readable_end_offset(partition: Partition | None, replica: int) -> int:
    """Return the first offset that a follower (`replica` >= 0) or a consumer may not read yet."""
    if partition is None:
        return 0
    return partition.log.log_end_offset if replica >= 0 else partition.log.high_watermark


def _replica_id(request: FetchRequest, version: int) -> int:
    """Return the id of the follower that sent the request, or -1 for a consumer."""
    return request.replica_state.replica_id if version >= _FIRST_VERSION_WITH_STATE else request.replica_id


async def _handle_large(
    broker: Broker, connection: Connection, slot: ResponseSlot, frame: bytes, version: int, correlation_id: int
) -> None:
    """Handle a request with many partitions: read them in chunks, and yield to the event loop between chunks."""
    run_in_executor = broker.router.large_requests.run_in_executor
    request = await run_in_executor(lambda: read_fetch_request(memoryview(frame), version))
    count = _partition_count(request)
    if count > broker.partitions.partitions_per_request_max:
        partitions_max = broker.partitions.partitions_per_request_max
        problem = f"Fetch request of {count} partitions exceeds the limit of {partitions_max}"
        if version < _FIRST_VERSION_WITH_SESSIONS:
            raise ProtocolError(problem)
        logger.warning("Connection from %s: rejecting the request: %s", connection.peer, problem)
        broker.on_partition_error(API_KEY, ErrorCode.INVALID_REQUEST, None)
        response = FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        slot.fill(encode_response(correlation_id, response, version))
        return
    try:
        session = _find_session(broker, connection, request, version) if _has_session(request) else None
    except ApiError as error:
        broker.on_partition_error(API_KEY, error.code, None)
        slot.fill(encode_response(correlation_id, FetchResponse(error_code=error.code), version))
        return
    if session is not None:  # respond immediately: the session's next request is small and can wait for records
        await _handle_large_session(broker, connection, slot, session, request, version, correlation_id)
        return
    reads = await _read_in_chunks(broker, connection, request, version)

    async def respond(reads: _PartitionReads) -> None:
        slot.fill(await run_in_executor(lambda: _encode(broker, connection, reads, version, correlation_id)))

    async def read_again_and_respond() -> None:
        await respond(await _read_in_chunks(broker, connection, request, version))

    if not _must_wait(request, reads, reads.keys):
        await respond(reads)
        return
    complete = partial(broker.router.run_for_connection, connection, API_KEY.name, read_again_and_respond)
    wait_ms = min(request.max_wait_ms, _LARGE_WAIT_MS_MAX)
    broker.purgatory.watch_for_connection(connection, complete, reads.keys, wait_ms, missing_bytes=reads.missing_bytes)


async def _handle_large_session(
    broker: Broker,
    connection: Connection,
    slot: ResponseSlot,
    session: FetchSession,
    request: FetchRequest,
    version: int,
    correlation_id: int,
) -> None:
    reads = _new_reads(broker, connection, request, version)
    for _ in _session_read_steps(broker, session, request, version, reads):
        await asyncio.sleep(0)
    _mark_sent(session, reads)
    run_in_executor = broker.router.large_requests.run_in_executor
    slot.fill(
        await run_in_executor(lambda: _encode(broker, connection, reads, version, correlation_id, session.session_id))
    )


async def _read_in_chunks(
    broker: Broker, connection: Connection, request: FetchRequest, version: int
) -> _PartitionReads:
    reads = _new_reads(broker, connection, request, version)
    for _ in _read_steps(broker, request, version, reads):
        await asyncio.sleep(0)
    return reads


def _read(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> _PartitionReads:
    reads = _new_reads(broker, connection, request, version)
    for _ in _read_steps(broker, request, version, reads):
        pass
    return reads


def _read_steps(broker: Broker, request: FetchRequest, version: int, reads: _PartitionReads) -> Iterator[None]:
    """Read the requested partitions into `reads`; yield after every `_PARTITIONS_PER_CHUNK` partitions."""
    left_in_chunk = _PARTITIONS_PER_CHUNK
    by_id = version >= _FIRST_VERSION_WITH_IDS
    for topic in request.topics:
        if by_id and not topic.topic:  # the topic may be deleted before the request is read again after a wait
            topic.topic = broker.image.topic_names.get(topic.topic_id, "")
        partition_data: list[PartitionData] = []
        for wanted in topic.partitions:
            partition_data.append(_read_partition(broker, request, topic, wanted, reads, version))
            left_in_chunk -= 1
            if not left_in_chunk:
                left_in_chunk = _PARTITIONS_PER_CHUNK
                yield
        if by_id:
            reads.responses.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=partition_data))
        else:
            reads.responses.append(FetchableTopicResponse(topic=topic.topic, partitions=partition_data))


def _read_partition(
    broker: Broker,
    request: FetchRequest,
    topic: FetchTopic,
    wanted: FetchPartition,
    reads: _PartitionReads,
    version: int,
    *,
    is_noted: bool = False,
) -> PartitionData:
    """Read one partition, add the result to `reads`, and return the partition's part of the response.

    `is_noted` is true if the leader's state already contains the follower's fetch offset.
    """
    partition, replica = None, reads.replica
    try:
        partition = _find_partition(broker, topic, wanted.partition, version)
        diverging = _check_epoch_and_divergence(broker, partition, wanted, replica, version)
        if replica >= 0 and not is_noted and diverging is None:
            _record_follower_offset(broker, partition, request, wanted, replica)
        log = partition.log
        high_watermark = log.high_watermark
        data = PartitionData(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if request.isolation_level == _READ_COMMITTED else None,
            records=b"",
        )
        if diverging is not None:
            data.diverging_epoch = diverging
            reads.respond_now = True
            return data
        if request.rack_id and replica < 0:
            chosen = broker.replication.read_replica(partition, wanted.fetch_offset, request.rack_id, reads.listener)
            if chosen is not None:
                data.preferred_read_replica = chosen
                reads.respond_now = True
                return data
        if replica >= 0 and broker.replication.is_follower_throttled(partition, replica, reads.throttled_bytes):
            reads.keys.append(partition.end_key)
            return data
        max_bytes = min(wanted.partition_max_bytes, reads.bytes_max - reads.size_bytes)
        found = broker.read(partition, replica, wanted.fetch_offset, max_bytes, min_one_batch=reads.size_bytes == 0)
    except ApiError as error:
        if error.code in _UNRESOLVED and replica < 0:
            reads.unresolved_count += 1
        else:
            reads.respond_now = True
        broker.on_partition_error(API_KEY, error.code, partition)
        return _error_response(wanted, partition, error, version)
    reads.keys.append(partition.end_key if replica >= 0 else partition)
    if found.size_bytes:
        reads.size_bytes += found.size_bytes
        data.records = [*found.buffers]
    elif reads.size_bytes and wanted.fetch_offset < _readable_end_offset(partition, replica):
        reads.respond_now = True  # the next batch does not fit, so the client should fetch it with its next request
    if replica >= 0 and broker.replication.leader_throttle.is_throttled(partition.topic, partition.index):
        reads.throttled_bytes += found.size_bytes
    return data


def _check_epoch_and_divergence(
    broker: Broker, partition: Partition, wanted: FetchPartition, replica: int, version: int
) -> EpochEndOffset | None:
    """Check leadership and leader epoch. Return the diverging epoch of the client's log, or None. Raises ApiError."""
    if partition.leader != broker.node_id and (replica >= 0 or version < _FIRST_VERSION_WITH_RACK):
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    return _diverging(partition, wanted)


def _record_follower_offset(
    broker: Broker, partition: Partition, request: FetchRequest, wanted: FetchPartition, replica: int
) -> bool:
    """Store the fetch offset in `wanted` as the offset of the follower `replica`.

    Returns False if the offset is out of range.
    """
    is_within = partition.log.log_start_offset <= wanted.fetch_offset <= partition.log.log_end_offset
    if is_within:
        broker.replication.on_follower_fetch(partition, replica, request.replica_state.replica_epoch, wanted)
    return is_within


def _find_partition(broker: Broker, topic: FetchTopic, index: int, version: int) -> Partition:
    by_id, table = version >= _FIRST_VERSION_WITH_IDS, broker.partitions
    by_index = table.by_id.get(topic.topic_id) if by_id else table.by_name.get(topic.topic)
    partition = by_index.get(index) if by_index is not None else None
    if partition is None:
        raise ApiError(_missing_partition_error(broker, topic, index, by_id=by_id))
    return partition


def _missing_partition_error(broker: Broker, topic: FetchTopic, index: int, *, by_id: bool) -> ErrorCode:
    """Return the error for a partition of which this broker has no replica.

    If the request has topic ids (`by_id`), `topic` also contains the name that this id had when the partition was first
    read. If the topic was deleted since then, another topic may have this name now.
    """
    image = broker.image
    same_id = image.topic_by_id(topic.topic_id) if by_id else None
    if by_id and same_id is None and not topic.topic:
        return ErrorCode.UNKNOWN_TOPIC_ID
    known = same_id or image.topics.get(topic.topic)
    if known is None or not 0 <= index < len(known.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if by_id and same_id is None and broker.partitions.get(topic.topic, index) is not None:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def _diverging(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """Return the diverging epoch (KIP-595), or None if the client's log does not diverge from this broker's log."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _error_response(
    wanted: FetchPartition, partition: Partition | None, error: ApiError, version: int
) -> PartitionData:
    data = PartitionData(
        partition_index=wanted.partition,
        error_code=error.code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
    if partition is not None:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            data.high_watermark = partition.log.high_watermark
            data.last_stable_offset = partition.log.high_watermark
            data.log_start_offset = partition.log.log_start_offset
        elif error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH) and version >= 12:
            data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
    return data


def _encode(
    broker: Broker,
    connection: Connection,
    reads: _PartitionReads,
    version: int,
    correlation_id: int,
    session_id: int = NO_SESSION,
) -> list[Buffer]:
    response = FetchResponse(session_id=session_id, responses=reads.responses)
    if reads.throttled_bytes:
        broker.replication.leader_throttle.record(reads.throttled_bytes, broker.replication.now_ms())
    if reads.respond_now and version >= _FIRST_VERSION_WITH_LEADER_HINTS:
        leaders = {data.current_leader.leader_id for topic in reads.responses for data in topic.partitions} - {-1}
        for leader in leaders:
            endpoint = broker.endpoint_of(leader, connection.listener)
            if endpoint is not None:
                response.node_endpoints.append(NodeEndpoint(node_id=leader, host=endpoint.host, port=endpoint.port))
    return encode_response(correlation_id, response, version)
