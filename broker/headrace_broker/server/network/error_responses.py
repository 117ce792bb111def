"""Builds the response to a request that failed as a whole, with the error in the API's own error fields.

A node sends this response to a request for the controller if no controller is active, or if the node is not the active
controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_quorum,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
    update_features,
)
from headrace_broker.protocol.notation import Request, Response

_RESULT_ARRAYS = ("topics", "responses", "results")


def error_response(request: Request[Any], version: int, code: ErrorCode, message: str) -> Response:
    """Build the response that has the error `code` and `message` for every item in the request."""
    return _BUILDERS[type(request)](request, version, code, message)


def first_error_code(response: Response) -> int:
    """Return the response's top-level error code, or, if this is NONE, the error code of the first result."""
    code: int = getattr(response, "error_code", ErrorCode.NONE)
    if code != ErrorCode.NONE:
        return code
    for name in _RESULT_ARRAYS:
        results = getattr(response, name, None)
        if results:
            return getattr(results[0], "error_code", ErrorCode.NONE)
    return ErrorCode.NONE


def _create_topics(request: Any, version: int, code: ErrorCode, message: str) -> Response:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _create_partitions(request: Any, version: int, code: ErrorCode, message: str) -> Response:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _delete_topics(request: Any, version: int, code: ErrorCode, message: str) -> Response:
    if version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, bytes(16)) for name in request.topic_names]
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
            for name, topic_id in wanted
        ]
    )


def _configs(response: type[Any], result: type[Any]) -> Callable[[Any, int, ErrorCode, str], Response]:
    def build(request: Any, version: int, code: ErrorCode, message: str) -> Response:
        built: Response = response(
            responses=[
                result(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )
        return built

    return build


def _elect_leaders(request: Any, version: int, code: ErrorCode, message: str) -> Response:
    results = [
        elect_leaders.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                elect_leaders.PartitionResult(partition_id=index, error_code=code, error_message=message)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(
        error_code=code if version >= 1 else ErrorCode.NONE, replica_election_results=results
    )


_Builder = Callable[[Any, int, ErrorCode, str], Response]


def _top_level(response: type[Any]) -> _Builder:
    """Return a function that builds an instance of the class `response` with a top-level error."""
    return lambda request, version, code, message: response(error_code=code, error_message=message)


_BUILDERS: dict[type[Any], _Builder] = {
    create_topics.CreateTopicsRequest: _create_topics,
    create_partitions.CreatePartitionsRequest: _create_partitions,
    delete_topics.DeleteTopicsRequest: _delete_topics,
    alter_configs.AlterConfigsRequest: _configs(
        alter_configs.AlterConfigsResponse, alter_configs.AlterConfigsResourceResponse
    ),
    incremental_alter_configs.IncrementalAlterConfigsRequest: _configs(
        incremental_alter_configs.IncrementalAlterConfigsResponse,
        incremental_alter_configs.AlterConfigsResourceResponse,
    ),
    elect_leaders.ElectLeadersRequest: _elect_leaders,
    alter_partition_reassignments.AlterPartitionReassignmentsRequest: _top_level(
        alter_partition_reassignments.AlterPartitionReassignmentsResponse
    ),
    list_partition_reassignments.ListPartitionReassignmentsRequest: _top_level(
        list_partition_reassignments.ListPartitionReassignmentsResponse
    ),
    describe_quorum.DescribeQuorumRequest: _top_level(describe_quorum.DescribeQuorumResponse),
    unregister_broker.UnregisterBrokerRequest: _top_level(unregister_broker.UnregisterBrokerResponse),
    update_features.UpdateFeaturesRequest: _top_level(update_features.UpdateFeaturesResponse),
}
