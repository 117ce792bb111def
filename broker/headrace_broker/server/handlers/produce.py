"""Produce (0): append one record batch per partition.

Produce is the most frequent request, so `network.produce_codec` decodes it without copying. The records are a view of
the receive buffer. The broker sets their offset and epoch in the buffer, and writes them to the log file before the
buffer is reused.

From version 10 on, a response with NOT_LEADER_OR_FOLLOWER contains the current leader (KIP-951). Version 13 identifies
topics by id. Versions 0 to 2 are not supported. The broker advertises them nevertheless, because old versions of
librdkafka compress only if the broker advertises version 0 (KAFKA-18659). A request with acks=0 has no response. If it
fails, the broker closes the connection, so that the producer detects the error.

With `headrace.records.validation=strict`, the broker checks the records of compressed batches before it appends them.
If a thread checks a batch, the connection processes no further requests until all batches of this request are appended,
so that the batches of a producer stay in order. Afterwards, the request is handled as if it had just arrived, because
the partition may have a new leader or may be deleted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from headrace_broker.log.validator import AppendOrigin, RecordsCheck, RecordsRejectedError, validate_header
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.framing import encode_response
from headrace_broker.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.records.batch import TRANSACTIONAL_MASK
from headrace_broker.server.network.connection import Connection
from headrace_broker.server.network.produce_codec import (
    ProduceParts,
    ProduceTopic,
    encode_appended,
    read_produce_request,
)
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.log.config import LogConfig
    from headrace_broker.log.log import AppendInfo
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.record_validator import RecordValidator

API_KEY = ApiKey.PRODUCE
VERSIONS = (3, 13)
ADVERTISED = (0, 13)

_ACKS_ALL = -1
_ACKS_NONE = 0
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_LEADER_HINTS = 10
_ATTRIBUTES_LOW_BYTE = 22
_BATCH_HEADER_SIZE = 61
_CODEC_MASK = 7
_ZSTD = 4

if TYPE_CHECKING:
    _Result = tuple[int, Partition | None, AppendInfo | ApiError]
    _TopicResult = tuple[str | bytes, list[_Result]]


def handle_frame(broker: Broker, connection: Connection, frame: memoryview, version: int, correlation_id: int) -> None:
    """Append every batch and respond. With acks=all, respond only when the batches are committed."""
    request = read_produce_request(frame, version, broker.partitions.partitions_per_request_max)
    checks: Sequence[RecordsCheck | None] = ()
    validator = broker.record_validator
    if validator is not None and _has_compressed_batch(request[3]):
        found = validator.check_small_batches(_batches_to_check(broker, request))
        if found is None:
            _check_in_thread(broker, validator, connection, bytearray(frame), version, correlation_id)
            return
        checks = found
    _append_and_respond(broker, connection, request, version, correlation_id, checks)


def _has_compressed_batch(topics: list[ProduceTopic]) -> bool:
    for _, partitions in topics:
        for _, records in partitions:
            if (
                records is not None
                and len(records) > _BATCH_HEADER_SIZE
                and records[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK
            ):
                return True
    return False


def _batches_to_check(broker: Broker, request: ProduceParts) -> Iterator[tuple[memoryview, LogConfig | None]]:
    """Yield each batch with the config of its topic.

    The config is None if the batch is not compressed, or if the leader will reject the batch because of its header.
    """
    for topic, partitions in request[3]:
        for index, records in partitions:
            if records is None or len(records) <= _BATCH_HEADER_SIZE or not records[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK:
                yield memoryview(b""), None
                continue
            try:
                partition = _find_partition(broker, topic, index)
                config = partition.log.config
                _check_leader(broker, partition)
                validate_header(records, config, AppendOrigin.CLIENT, broker.now_ms())
            except ApiError:  # the append fails with the same error
                yield records, None
                continue
            yield records, config


def _check_in_thread(
    broker: Broker,
    validator: RecordValidator,
    connection: Connection,
    frame: bytearray,
    version: int,
    correlation_id: int,
) -> None:
    """Check all batches of the request in a thread, then append them. `frame` is a copy of the connection's buffer.

    If the connection is closed during the check, no batch is appended, because the producer sends the batches again.
    """
    connection.pause_requests()
    broker.router.request_memory.add_in_process(connection, len(frame))

    def is_wanted() -> bool:
        return not connection.is_closing

    async def check_and_append() -> None:
        try:
            request = read_produce_request(memoryview(frame), version)
            checks: list[RecordsCheck | None] = []
            for records, config in _batches_to_check(broker, request):
                checks.append(None if config is None else await validator.check(records, config, is_wanted))
                if connection.is_closing:
                    return
            _append_and_respond(broker, connection, request, version, correlation_id, checks)
        finally:
            broker.router.request_memory.release_in_process(connection)
            connection.resume_requests()

    broker.router.run_for_connection(connection, API_KEY.name, check_and_append)


def _append_and_respond(
    broker: Broker,
    connection: Connection,
    request: ProduceParts,
    version: int,
    correlation_id: int,
    checks: Sequence[RecordsCheck | None],
) -> None:
    """Append every batch.

    `checks` contains the result of the check of each batch, or None for an unchecked batch. It is empty if no batch was
    checked.
    """
    transactional_id, acks, timeout_ms, topics = request
    if len(topics) == 1 and acks == 1 and transactional_id is None:
        topic, partitions = topics[0]
        if len(partitions) == 1:  # fast path for the most common request
            index, records = partitions[0]
            check = checks[0] if checks else None
            connection.reply(
                (_append_and_encode(broker, connection, correlation_id, version, topic, index, records, check),)
            )
            return
    request_error = _invalid_request_error(transactional_id, acks)
    check_of_next = iter(checks or repeat(None))
    results = [
        (
            topic,
            [
                _append_batch(
                    broker, connection, topic, index, records, version, acks, request_error, next(check_of_next)
                )
                for index, records in partitions
            ],
        )
        for topic, partitions in topics
    ]
    if acks == _ACKS_NONE:
        failure = _describe_first_error(results)
        if failure is not None:
            connection.close(f"acks=0 and {failure}")
        return
    missing = _required_offsets(results) if acks == _ACKS_ALL else {}
    if missing and not connection.is_closing:
        _respond_when_replicated(broker, connection, correlation_id, version, timeout_ms, results, missing)
    else:
        connection.reply(encode_response(correlation_id, _response(broker, connection, results, version), version))


def _append_and_encode(
    broker: Broker,
    connection: Connection,
    correlation_id: int,
    version: int,
    topic: str | bytes,
    index: int,
    records: memoryview | None,
    check: RecordsCheck | None,
) -> bytes:
    partition = None
    try:
        partition = _find_partition(broker, topic, index)
        info = _check_and_append(broker, partition, records, version, check)
    except ApiError as error:
        results: list[_TopicResult] = [(topic, [(index, partition, error)])]
        return b"".join(encode_response(correlation_id, _response(broker, connection, results, version), version))
    return encode_appended(
        correlation_id, version, topic, index, info.base_offset, info.log_append_time_ms, info.log_start_offset
    )


def _append_batch(
    broker: Broker,
    connection: Connection,
    topic: str | bytes,
    index: int,
    records: memoryview | None,
    version: int,
    acks: int,
    request_error: ApiError | None,
    check: RecordsCheck | None,
) -> _Result:
    if request_error is not None:
        return index, None, request_error
    partition = None
    try:
        partition = _find_partition(broker, topic, index)
        if acks == _ACKS_ALL and partition.replicas is not None:
            broker.replication.check_min_isr(partition)
        info = _check_and_append(broker, partition, records, version, check)
    except ApiError as error:
        return index, partition, connection.retriable_batch_errors.error_to_return((topic, index), error)
    if connection.retriable_batch_errors:
        connection.retriable_batch_errors.clear((topic, index))
    return index, partition, info


def _invalid_request_error(transactional_id: str | None, acks: int) -> ApiError | None:
    if transactional_id is not None:
        return ApiError(ErrorCode.INVALID_TXN_STATE, "Transactions are not supported by this broker yet.")
    if acks not in (0, 1, -1):
        return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: must be 0, 1 or -1 (all).")
    return None


def _find_partition(broker: Broker, topic: str | bytes, index: int) -> Partition:
    table = broker.partitions
    found = table.by_name.get(topic) if isinstance(topic, str) else table.by_id.get(topic)
    partition = found.get(index) if found is not None else None
    if partition is None:
        if found is None and not isinstance(topic, str):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return partition


def _check_leader(broker: Broker, partition: Partition) -> None:
    if partition.leader != broker.node_id:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _check_and_append(
    broker: Broker, partition: Partition, records: memoryview | None, version: int, check: RecordsCheck | None
) -> AppendInfo:
    _check_leader(broker, partition)
    if records is None or len(records) < _BATCH_HEADER_SIZE:
        raise ApiError(
            ErrorCode.INVALID_RECORD if records is None else ErrorCode.CORRUPT_MESSAGE,
            f"Partition {partition.topic}-{partition.index}: a Produce request must contain one complete record batch.",
        )
    if records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_MASK:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "Transactions are not supported by this broker yet.")
    if version < _FIRST_VERSION_WITH_ZSTD and records[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK == _ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests before version 7 cannot use zstd compression."
        )
    return broker.append(partition, records, check=check)


def _required_offsets(results: list[_TopicResult]) -> dict[Hashable, int]:
    """Return, for each partition, the high watermark that it must reach before its batch is committed.

    Partitions whose batch is already committed are omitted.
    """
    return {
        partition: info.last_offset + 1
        for _, partition_results in results
        for _, partition, info in partition_results
        if partition is not None and not isinstance(info, ApiError) and partition.log.high_watermark <= info.last_offset
    }


def _respond_when_replicated(
    broker: Broker,
    connection: Connection,
    correlation_id: int,
    version: int,
    timeout_ms: int,
    results: list[_TopicResult],
    missing: dict[Hashable, int],
) -> None:
    slot = connection.reserve_response()
    epochs = {partition: partition.leader_epoch for partition in missing if isinstance(partition, Partition)}

    def complete() -> None:
        completed = [
            (
                topic,
                [
                    (index, partition, _result_after_replication(broker, partition, info, epochs))
                    for index, partition, info in partition_results
                ],
            )
            for topic, partition_results in results
        ]
        slot.fill(encode_response(correlation_id, _response(broker, connection, completed, version), version))

    broker.purgatory.watch_for_connection(
        connection, complete, list(missing), max(0, timeout_ms), required_offsets=dict(missing)
    )


def _result_after_replication(
    broker: Broker, partition: Partition | None, info: AppendInfo | ApiError, epochs: dict[Partition, int]
) -> AppendInfo | ApiError:
    """Return the result of a batch that waited for replication: its offsets, or an error.

    `info` is the result of the append. `epochs` contains the leader epoch at the append for each partition that waited.
    """
    if partition is None or isinstance(info, ApiError) or partition not in epochs:
        return info
    if partition.leader != broker.node_id or not _is_still_in_log(partition, info, epochs[partition]):
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if partition.log.high_watermark <= info.last_offset:
        return ApiError(ErrorCode.REQUEST_TIMED_OUT)
    if partition.replicas is not None and partition.replicas.is_under_min_isr:
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    return info


def _is_still_in_log(partition: Partition, info: AppendInfo, epoch: int) -> bool:
    """Return whether a batch that was appended in leader epoch `epoch` is still in the log.

    If another broker was the leader in the meantime, this broker may have truncated its log. A new leader epoch can
    also start while the leader stays the same, for example when a replica is removed. After such a new leader epoch,
    the batch is still in the log.
    """
    if partition.leader_epoch == epoch:
        return True
    known, end_offset = partition.log.end_offset_for_epoch(epoch)
    return known == epoch and info.last_offset < end_offset


def _response(broker: Broker, connection: Connection, results: list[_TopicResult], version: int) -> ProduceResponse:
    response = ProduceResponse()
    leaders: set[int] = set()
    for topic, partition_results in results:
        for _, partition, info in partition_results:
            if isinstance(info, ApiError):
                broker.on_partition_error(API_KEY, info.code, partition)
        partitions = [_partition_response(item, version, leaders) for item in partition_results]
        if isinstance(topic, str):
            response.responses.append(TopicProduceResponse(name=topic, partition_responses=partitions))
        else:
            response.responses.append(TopicProduceResponse(topic_id=topic, partition_responses=partitions))
    for leader in leaders:
        endpoint = broker.endpoint_of(leader, connection.listener)
        if endpoint is not None:
            response.node_endpoints.append(NodeEndpoint(node_id=leader, host=endpoint.host, port=endpoint.port))
    return response


def _partition_response(result: _Result, version: int, leaders: set[int]) -> PartitionProduceResponse:
    index, partition, info = result
    if not isinstance(info, ApiError):
        return PartitionProduceResponse(
            index=index,
            base_offset=info.base_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
    response = PartitionProduceResponse(
        index=index, error_code=info.code, base_offset=-1, error_message=info.message if version >= 8 else None
    )
    if isinstance(info, RecordsRejectedError):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text) for at, text in info.record_errors
        ]
    is_hint_due = info.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _FIRST_VERSION_WITH_LEADER_HINTS
    if is_hint_due and partition is not None:
        response.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        leaders.add(partition.leader)
    return response


def _describe_first_error(results: list[_TopicResult]) -> str | None:
    for topic, partition_results in results:
        for index, _, info in partition_results:
            if isinstance(info, ApiError):
                name = topic if isinstance(topic, str) else topic.hex()
                return f"{name}-{index} rejected the batch: {info}"
    return None
