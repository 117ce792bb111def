"""Answers to requests that nobody can carry out: every forwarded API has its error where its clients look for it."""

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
from headrace_broker.server.network.listeners import BROKER
from headrace_broker.server.network.refusals import error_code_of, refused
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
def test_every_forwarded_api_can_say_that_there_is_no_controller(route: Route) -> None:
    request = REQUESTS.get(route.api.name) or route.api.request()
    for version in range(route.versions[0], route.versions[1] + 1):
        answer = refused(request, version, ErrorCode.REQUEST_TIMED_OUT, "no active controller")
        again = decode(route.api.response, version, encode_joined(answer, version), 0)
        if route.api.name == "ElectLeaders" and version == 0:
            assert again.replica_election_results[0].partition_result[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        else:
            assert error_code_of(again) == ErrorCode.REQUEST_TIMED_OUT


def test_what_went_well_has_no_error() -> None:
    for route in FORWARDED:
        assert error_code_of(route.api.response()) == ErrorCode.NONE
