"""Tests of error responses: for every forwarded API, the error is in the fields where clients expect it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_configs import AlterConfigsRequest
from headrace_broker.protocol.messages.alter_configs import AlterConfigsResource as Replaced
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.server.network.error_responses import error_response, first_error_code
from headrace_broker.server.network.listener_types import BROKER
from headrace_broker.server.network.routing import Route, load_routes

FORWARDED = [route for route in load_routes()[BROKER].values() if route.is_forwarded]
REQUESTS: dict[str, Any] = {
    "CreateTopics": CreateTopicsRequest(topics=[CreatableTopic(name="t")]),
    "DeleteTopics": DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"]),
    "CreatePartitions": CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t")]),
    "AlterConfigs": AlterConfigsRequest(resources=[Replaced(resource_type=2, resource_name="t")]),
    "IncrementalAlterConfigs": IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
    "ElectLeaders": ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]),
}


@pytest.mark.parametrize("route", FORWARDED, ids=lambda route: route.api.name)
def test_every_forwarded_api_has_an_error_response(route: Route) -> None:
    request = REQUESTS.get(route.api.name) or route.api.request()
    for version in range(route.versions[0], route.versions[1] + 1):
        response = error_response(request, version, ErrorCode.REQUEST_TIMED_OUT, "no active controller")
        decoded = decode(route.api.response, version, encode_joined(response, version), 0)
        if route.api.name == "ElectLeaders" and version == 0:
            assert decoded.replica_election_results[0].partition_result[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        else:
            assert first_error_code(decoded) == ErrorCode.REQUEST_TIMED_OUT


def test_successful_response_has_no_error_code() -> None:
    for route in FORWARDED:
        assert first_error_code(route.api.response()) == ErrorCode.NONE
