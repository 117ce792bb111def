"""Error responses: for each supported API, a response with one error for all topics or partitions of a request.

The error is in the field that clients read at the request's API version. For most APIs, the result of each topic or
partition contains this field. For the other APIs, the field is at the top level of the response. For `Metadata`, the
error is written into the broker's own response, because a response without brokers would disconnect the client from the
cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.network import error_responses as controller_responses

_FULL_FETCH_EPOCHS = (-1, 0)


def error_response(request: Request[Any], version: int, error: ErrorCode) -> Response:
    """Build the response that reports an error, for a request of any API in `APIS_WITH_ERRORS` except Metadata."""
    return _BUILDERS[ApiKey(request.__api_key__)](request, version, error)


def set_metadata_error(response: metadata.MetadataResponse, error: ErrorCode) -> None:
    """Report the error for each topic of a Metadata response."""
    for topic in response.topics:
        topic.error_code = error
        topic.partitions = []


def is_incremental_fetch(request: Request[Any]) -> bool:
    """Whether the request is an incremental Fetch request, which omits the unchanged partitions of a fetch session."""
    return isinstance(request, fetch.FetchRequest) and request.session_epoch not in _FULL_FETCH_EPOCHS


def end_of_fetch_session() -> fetch.FetchResponse:
    """Build the response that ends a fetch session. The client then sends a Fetch request with all its partitions."""
    return fetch.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def _produce(request: produce.ProduceRequest, version: int, error: ErrorCode) -> Response:
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce.PartitionProduceResponse(index=partition.index, error_code=error, base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: fetch.FetchRequest, version: int, error: ErrorCode) -> Response:
    """Build a response that reports the error for each partition and contains no fetch session."""
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    fetch.PartitionData(
                        partition_index=partition.partition, error_code=error, high_watermark=-1, records=b""
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: list_offsets.ListOffsetsRequest, version: int, error: ErrorCode) -> Response:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_commit(request: offset_commit.OffsetCommitRequest, version: int, error: ErrorCode) -> Response:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: offset_fetch.OffsetFetchRequest, version: int, error: ErrorCode) -> Response:
    if version >= 8:
        groups = [
            offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in request.groups
        ]
        return offset_fetch.OffsetFetchResponse(groups=groups)
    topics = [
        offset_fetch.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                offset_fetch.OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=error)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return offset_fetch.OffsetFetchResponse(topics=topics, error_code=error)


def _offset_for_leader_epoch(
    request: offset_for_leader_epoch.OffsetForLeaderEpochRequest, version: int, error: ErrorCode
) -> Response:
    return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    offset_for_leader_epoch.EpochEndOffset(partition=partition.partition, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _find_coordinator(request: find_coordinator.FindCoordinatorRequest, version: int, error: ErrorCode) -> Response:
    if version >= 4:
        coordinators = [
            find_coordinator.Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=None)
            for key in request.coordinator_keys
        ]
        return find_coordinator.FindCoordinatorResponse(coordinators=coordinators)
    return find_coordinator.FindCoordinatorResponse(error_code=error, error_message=None, node_id=-1, port=-1)


def _join_group(request: Any, version: int, error: ErrorCode) -> Response:
    response: Any = API[ApiKey.JOIN_GROUP].response
    name = None if version >= 7 else ""  # nullable from version 7 on
    built: Response = response(error_code=error, member_id=request.member_id, protocol_name=name)
    return built


def _top_level(request: Request[Any], version: int, error: ErrorCode) -> Response:
    """Build the response for an API that has, in all versions, a single error field at the top level."""
    response: Any = API[request.__api_key__].response
    built: Response = response(error_code=error)
    return built


def _controller(request: Request[Any], version: int, error: ErrorCode) -> Response:
    return controller_responses.error_response(request, version, error, error.message)


_BUILDERS: dict[ApiKey, Callable[[Any, int, ErrorCode], Response]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: _top_level,
    ApiKey.LEAVE_GROUP: _top_level,
    ApiKey.SYNC_GROUP: _top_level,
    ApiKey.INIT_PRODUCER_ID: _top_level,
    ApiKey.DESCRIBE_CLUSTER: _top_level,
    ApiKey.CREATE_TOPICS: _controller,
    ApiKey.CREATE_PARTITIONS: _controller,
    ApiKey.DELETE_TOPICS: _controller,
    ApiKey.ALTER_CONFIGS: _controller,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _controller,
}

APIS_WITH_ERRORS = frozenset((*_BUILDERS, ApiKey.METADATA))
"""The APIs for which error injection is supported."""
