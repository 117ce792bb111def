"""Fetch (1): read record batches, waiting for new ones when there are too few.

A response holds whole batches as they lie in the file: the batch that contains the asked offset comes first and whole,
even when that is more than max_bytes.  Records are never looked into.

Consumers may read from a follower too (KIP-392), up to the high watermark that it knows; the leader sends them there,
with an answer that has no records, if replica.selector.class says so.

Version notes: 4-17; 7+ sessions (KIP-227), which this broker has from 13 on and refuses politely before, by answering
session id 0, so that every request is a full one; 11+ the consumer's rack; 12+ divergence by last fetched epoch; 13+
topics by id; 15+ replica state in a tagged field; 16+ tells where the leader is (KIP-951).
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
from headrace_broker.server.network.connection import Connection, Slot
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
_LARGE_FRAME_BYTES = 32 * 1024
_PARKED_SESSION_BYTES = 256
_LARGE_WAIT_MS_MAX = 5000
_PARTITIONS_PER_STEP = 500
_REPLICA_ANSWER_BYTES = 2 * 1024 * 1024
"""What a replica gets at once: while it writes more than that, it asks nothing, and acks=all waits for what it asks."""

logger = logging.getLogger(__name__)


class _Reading:
    """What one pass over the wanted partitions found."""

    __slots__ = ("keys", "listener", "must_answer", "news", "responses", "size_bytes", "throttled_bytes")

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.responses: list[FetchableTopicResponse] = []
        self.size_bytes = 0
        self.throttled_bytes = 0
        self.must_answer = False
        self.keys: list[Hashable] = []
        self.news: dict[Key, PartitionData] = {}


def handle_frame(broker: Broker, connection: Connection, frame: memoryview, version: int, correlation_id: int) -> None:
    """Answer with what is there, or wait for more up to max_wait_ms."""
    if len(frame) > _LARGE_FRAME_BYTES:
        slot = connection.hold()
        work = partial(_answer_large, broker, connection, slot, bytes(frame), version, correlation_id)
        broker.router.start(connection, API_KEY.name, work)
        return
    request = read_fetch_request(frame, version)
    if _has_session(request):
        try:
            session = _session_of(broker, connection, request, version)
        except ApiError as error:
            broker.refused(API_KEY, error.code, None)
            connection.reply(encode_response(correlation_id, FetchResponse(error_code=error.code), version))
            return
        if session is not None:
            _answer_session(broker, connection, session, request, version, correlation_id)
            return
    reading = _read(broker, connection, request, version)
    is_enough = reading.size_bytes >= request.min_bytes or reading.must_answer
    if is_enough or request.max_wait_ms <= 0 or not reading.keys:
        connection.reply(_encode(broker, connection, reading, version, correlation_id))
        return
    slot = connection.park(len(frame))

    def complete() -> None:
        connection.parked.pop(operation, None)
        slot.fill(_encode(broker, connection, _read(broker, connection, request, version), version, correlation_id))

    operation = broker.waiting.park(
        complete, reading.keys, request.max_wait_ms, missing_bytes=request.min_bytes - reading.size_bytes
    )
    connection.parked[operation] = None


def _has_session(request: FetchRequest) -> bool:
    return request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION


def _session_of(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> FetchSession | None:
    """The session that the request opens or goes on with; None when it gets none and is answered in full.

    A replica's ends those that it had before: nobody else may open one in its name.
    """
    if version < _FIRST_VERSION_WITH_IDS:
        if request.session_epoch > INITIAL_EPOCH:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return None
    replica = _replica_of(request, version)
    if replica >= 0:
        if not broker.replication.is_registered(replica, request.replica_state.replica_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        broker.router.is_replicas(connection)
    session = broker.fetch_sessions.find(request, replica)
    if session is not None:
        if replica < 0 and len(session.wanted) + _count(request) > broker.partitions.named_max:
            logger.warning(
                "refusing request from %s: a fetch session of more partitions than there are", connection.peer
            )
            raise ApiError(ErrorCode.INVALID_REQUEST)
        broker.fetch_sessions.take(session, request, broker.partitions)
    return session


def _count(request: FetchRequest) -> int:
    return sum(len(topic.partitions) for topic in request.topics)


def _answer_session(
    broker: Broker, connection: Connection, session: FetchSession, request: FetchRequest, version: int, correlation: int
) -> None:
    """Answer what is new in a session, or wait until something is; the first answer tells of everything, at once."""
    missing_bytes = request.min_bytes
    may_wait = request.session_epoch != INITIAL_EPOCH and request.max_wait_ms > 0 and bool(session.wanted)
    if may_wait and session.replica_id >= 0:
        _note_places(broker, session, request, version)
        broker.waiting.flush()  # who waited for this replica only has the answer before anything is read
    if not (may_wait and broker.fetch_sessions.has_nothing_for_replica(session, broker.node_id)):
        reading = _read_news(broker, connection, session, request, version)
        if not may_wait or reading.size_bytes >= request.min_bytes or reading.must_answer:
            connection.reply(_encode_news(broker, connection, session, reading, version, correlation))
            return
        for key in reading.news:  # it is not told yet
            session.mark(key)
        missing_bytes -= reading.size_bytes
    slot = connection.park(_PARKED_SESSION_BYTES)

    def complete() -> None:
        connection.parked.pop(operation, None)
        reading = _read_news(broker, connection, session, request, version)
        slot.fill(_encode_news(broker, connection, session, reading, version, correlation))

    operation = broker.waiting.park(complete, [session], request.max_wait_ms, missing_bytes=missing_bytes)
    connection.parked[operation] = None


def _note_places(broker: Broker, session: FetchSession, request: FetchRequest, version: int) -> None:
    """Take note of how far the replica is; what is wrong with a partition is told when it is read."""
    for topic in request.topics:
        for wanted in topic.partitions:
            try:
                partition = _find(broker, topic, wanted.partition, version)
                if _checked(broker, partition, wanted, session.replica_id, version) is None:
                    known = session.wanted[topic.topic_id, wanted.partition]
                    known.is_noted = _note_place(broker, partition, request, wanted, session.replica_id)
            except ApiError:
                continue


def _read_news(
    broker: Broker, connection: Connection, session: FetchSession, request: FetchRequest, version: int
) -> _Reading:
    reading = _Reading(connection.listener)
    for _ in _news_steps(broker, session, request, version, reading):
        pass
    return reading


def _news_steps(
    broker: Broker, session: FetchSession, request: FetchRequest, version: int, reading: _Reading
) -> Iterator[None]:
    """Read the partitions of a session that have news, with halts; the first answer of a session tells of all."""
    is_full = request.session_epoch == INITIAL_EPOCH
    left = min(request.max_bytes, broker.config.fetch_max_bytes, broker.router.response_bytes_max())
    if session.replica_id >= 0:
        left = min(left, _REPLICA_ANSWER_BYTES)
    topics: dict[bytes, FetchableTopicResponse] = {}
    for count, key in enumerate(list(session.news), 1):
        if left <= 0 and not is_full:
            break  # the others keep their news, and come first the next time
        if count % _PARTITIONS_PER_STEP == 0:
            yield
        known = session.wanted.get(key)
        if known is None:
            continue  # forgotten in the meantime
        wanted = known.partition
        partition = broker.fetch_sessions.attach(session, key, broker.partitions)
        topic = FetchTopic(topic_id=key[0])
        answer, size_bytes = _read_partition(
            broker, request, topic, wanted, left, reading, version, is_noted=known.is_noted
        )
        known.is_noted = answer.error_code == ErrorCode.NONE
        left -= size_bytes
        # Nothing may be read although something is there: a batch that is larger than what is left of the answer.
        end_offset = _end_for(partition, session.replica_id)
        is_exhausted = not size_bytes and wanted.fetch_offset >= end_offset
        session.looked_at(key, is_exhausted=is_exhausted and answer.error_code == ErrorCode.NONE)
        is_news = session.is_news(key, answer)
        if is_news or is_full:
            reading.news[key] = answer
            of_topic = topics.setdefault(key[0], FetchableTopicResponse(topic_id=key[0], partitions=[]))
            of_topic.partitions.append(answer)
        if is_news and partition is not None and partition.replicas is not None:
            # A new high watermark alone is worth an answer where consumers wait for it.
            reading.must_answer |= partition.replicas.serves_consumers(session.replica_id)
    reading.responses = list(topics.values())


def _encode_news(
    broker: Broker, connection: Connection, session: FetchSession, reading: _Reading, version: int, correlation_id: int
) -> list[Buffer]:
    _note_told(session, reading)
    return _encode(broker, connection, reading, version, correlation_id, session.session_id)


def _note_told(session: FetchSession, reading: _Reading) -> None:
    for key, answer in reading.news.items():
        session.told(key, answer)


def _end_for(partition: Partition | None, replica: int) -> int:
    """Where the log ends for a follower, or for a consumer."""
    if partition is None:
        return 0
    return partition.log.log_end_offset if replica >= 0 else partition.log.high_watermark


def _replica_of(request: FetchRequest, version: int) -> int:
    """The follower that asks, -1 for a consumer."""
    return request.replica_state.replica_id if version >= _FIRST_VERSION_WITH_STATE else request.replica_id


async def _answer_large(
    broker: Broker, connection: Connection, slot: Slot, frame: bytes, version: int, correlation_id: int
) -> None:
    """The same for a request that names so many partitions that the loop has to be given back in between."""
    aside = broker.router.large_requests.aside
    request = await aside(lambda: read_fetch_request(memoryview(frame), version))
    count = _count(request)
    if count > broker.partitions.named_max:
        fault = f"a Fetch of {count} partitions, where {broker.partitions.named_max} are more than there can be"
        if version < _FIRST_VERSION_WITH_SESSIONS:
            raise ProtocolError(fault)
        logger.warning("refusing request from %s: %s", connection.peer, fault)
        broker.refused(API_KEY, ErrorCode.INVALID_REQUEST, None)
        refused = FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        slot.fill(encode_response(correlation_id, refused, version))
        return
    try:
        session = _session_of(broker, connection, request, version) if _has_session(request) else None
    except ApiError as error:
        broker.refused(API_KEY, error.code, None)
        slot.fill(encode_response(correlation_id, FetchResponse(error_code=error.code), version))
        return
    if session is not None:  # a small request will follow, and wait
        await _answer_large_session(broker, connection, slot, session, request, version, correlation_id)
        return
    reading = await _read_in_steps(broker, connection, request, version)
    wait_ms = min(request.max_wait_ms, _LARGE_WAIT_MS_MAX)
    if reading.keys and not reading.must_answer and reading.size_bytes < request.min_bytes and wait_ms > 0:
        due = asyncio.get_running_loop().create_future()
        missing_bytes = request.min_bytes - reading.size_bytes
        broker.waiting.park(lambda: due.set_result(None), reading.keys, wait_ms, missing_bytes=missing_bytes)
        await due
        reading = await _read_in_steps(broker, connection, request, version)
    slot.fill(await aside(lambda: _encode(broker, connection, reading, version, correlation_id)))


async def _answer_large_session(
    broker: Broker,
    connection: Connection,
    slot: Slot,
    session: FetchSession,
    request: FetchRequest,
    version: int,
    correlation_id: int,
) -> None:
    reading = _Reading(connection.listener)
    for _ in _news_steps(broker, session, request, version, reading):
        await asyncio.sleep(0)
    _note_told(session, reading)
    aside = broker.router.large_requests.aside
    slot.fill(await aside(lambda: _encode(broker, connection, reading, version, correlation_id, session.session_id)))


async def _read_in_steps(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> _Reading:
    reading = _Reading(connection.listener)
    for _ in _steps(broker, request, version, reading):
        await asyncio.sleep(0)
    return reading


def _read(broker: Broker, connection: Connection, request: FetchRequest, version: int) -> _Reading:
    reading = _Reading(connection.listener)
    for _ in _steps(broker, request, version, reading):
        pass
    return reading


def _steps(broker: Broker, request: FetchRequest, version: int, reading: _Reading) -> Iterator[None]:
    """Read the wanted partitions, with a halt after every so many."""
    left_in_step = _PARTITIONS_PER_STEP
    left = min(request.max_bytes, broker.config.fetch_max_bytes, broker.router.response_bytes_max())
    for topic in request.topics:
        answers: list[PartitionData] = []
        for wanted in topic.partitions:
            answer, size_bytes = _read_partition(broker, request, topic, wanted, left, reading, version)
            left -= size_bytes
            answers.append(answer)
            left_in_step -= 1
            if not left_in_step:
                left_in_step = _PARTITIONS_PER_STEP
                yield
        if version >= _FIRST_VERSION_WITH_IDS:
            reading.responses.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=answers))
        else:
            reading.responses.append(FetchableTopicResponse(topic=topic.topic, partitions=answers))


def _read_partition(
    broker: Broker,
    request: FetchRequest,
    topic: FetchTopic,
    wanted: FetchPartition,
    left: int,
    reading: _Reading,
    version: int,
    *,
    is_noted: bool = False,
) -> tuple[PartitionData, int]:
    """(the answer, bytes of records); `is_noted`: how far the replica is was noted when it asked."""
    partition = None
    try:
        partition = _find(broker, topic, wanted.partition, version)
        replica = _replica_of(request, version)
        diverging = _checked(broker, partition, wanted, replica, version)
        if replica >= 0 and not is_noted and diverging is None:
            _note_place(broker, partition, request, wanted, replica)
        log = partition.log
        high_watermark = log.high_watermark
        answer = PartitionData(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if request.isolation_level == _READ_COMMITTED else None,
            records=b"",
        )
        if diverging is not None:
            answer.diverging_epoch = diverging
            reading.must_answer = True
            return answer, 0
        if request.rack_id and replica < 0:
            chosen = broker.replication.read_replica(partition, wanted.fetch_offset, request.rack_id, reading.listener)
            if chosen is not None:
                answer.preferred_read_replica = chosen
                reading.must_answer = True
                return answer, 0
        if replica >= 0 and broker.replication.holds_back(partition, replica, reading.throttled_bytes):
            reading.keys.append(partition.end)
            return answer, 0
        max_bytes = min(wanted.partition_max_bytes, left)
        found = broker.read(partition, replica, wanted.fetch_offset, max_bytes, min_one_batch=reading.size_bytes == 0)
    except ApiError as error:
        reading.must_answer = True
        broker.refused(API_KEY, error.code, partition)
        return _failed(wanted, partition, error, version), 0
    reading.keys.append(partition.end if replica >= 0 else partition)
    reading.size_bytes += found.size_bytes
    if replica >= 0 and broker.replication.leader_throttle.holds_for(partition.topic, partition.index):
        reading.throttled_bytes += found.size_bytes
    if found.size_bytes:
        answer.records = [*found.buffers]
    return answer, found.size_bytes


def _checked(
    broker: Broker, partition: Partition, wanted: FetchPartition, replica: int, version: int
) -> EpochEndOffset | None:
    """Whether it may be read from here, and where the client's log parts from ours; raises ApiError."""
    if partition.leader != broker.node_id and (replica >= 0 or version < _FIRST_VERSION_WITH_RACK):
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    return _diverging(partition, wanted)


def _note_place(
    broker: Broker, partition: Partition, request: FetchRequest, wanted: FetchPartition, replica: int
) -> bool:
    """Take note of how far the replica is, if it can be there."""
    is_within = partition.log.log_start_offset <= wanted.fetch_offset <= partition.log.log_end_offset
    if is_within:
        broker.replication.fetched(partition, replica, request.replica_state.replica_epoch, wanted)
    return is_within


def _find(broker: Broker, topic: FetchTopic, index: int, version: int) -> Partition:
    by_id, table = version >= _FIRST_VERSION_WITH_IDS, broker.partitions
    held = table.by_id.get(topic.topic_id) if by_id else table.by_name.get(topic.topic)
    partition = held.get(index) if held is not None else None
    if partition is not None:
        return partition
    known = broker.image.topic_by_id(topic.topic_id) if by_id else broker.image.topics.get(topic.topic)
    if known is not None and 0 <= index < len(known.partitions):
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # the replica is elsewhere: it may have been moved
    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID if by_id and known is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _diverging(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """Where the client's log and ours part, when the epoch it read last tells that they do (KIP-595)."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _failed(wanted: FetchPartition, partition: Partition | None, error: ApiError, version: int) -> PartitionData:
    answer = PartitionData(
        partition_index=wanted.partition,
        error_code=error.code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
    if partition is not None:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            answer.high_watermark = partition.log.high_watermark
            answer.last_stable_offset = partition.log.high_watermark
            answer.log_start_offset = partition.log.log_start_offset
        elif error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH) and version >= 12:
            answer.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
    return answer


def _encode(
    broker: Broker,
    connection: Connection,
    reading: _Reading,
    version: int,
    correlation_id: int,
    session_id: int = NO_SESSION,
) -> list[Buffer]:
    response = FetchResponse(session_id=session_id, responses=reading.responses)
    if reading.throttled_bytes:
        broker.replication.leader_throttle.count(reading.throttled_bytes, broker.replication.now_ms())
    if reading.must_answer and version >= _FIRST_VERSION_WITH_LEADER_HINTS:
        leaders = {answer.current_leader.leader_id for topic in reading.responses for answer in topic.partitions} - {-1}
        for leader in leaders:
            endpoint = broker.endpoint_of(leader, connection.listener)
            if endpoint is not None:
                response.node_endpoints.append(NodeEndpoint(node_id=leader, host=endpoint.host, port=endpoint.port))
    return encode_response(correlation_id, response, version)
