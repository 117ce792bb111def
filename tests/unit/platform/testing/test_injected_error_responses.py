"""Tests of the error responses that the broker of `headrace.testing` sends, for each version of each supported API."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace.testing.error_responses import APIS_WITH_ERRORS, error_response, set_metadata_error
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import metadata
from headrace_broker.protocol.notation import Message
from support.random_messages import random_message

ERROR = ErrorCode.NOT_LEADER_OR_FOLLOWER
API_VERSIONS = [
    (key, version)
    for key in sorted(APIS_WITH_ERRORS - {ApiKey.METADATA})
    for version in range(API[key].min_version, API[key].max_version + 1)
]


def error_codes(message: Message) -> list[int]:
    """Return all error codes in a message, however deeply nested."""
    found: list[int] = []
    for field in message.__fields__:
        value: Any = getattr(message, field.name)
        if field.name == "error_code":
            found.append(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                found += error_codes(each)
    return found


@pytest.mark.parametrize(("key", "version"), API_VERSIONS)
def test_error_response_of_each_version_contains_the_injected_error(key: ApiKey, version: int) -> None:
    found: set[int] = set()
    for seed in range(30):  # some random requests name no topic and no partition
        request = random_message(API[key].request, version, Random(seed))
        encoded = encode_joined(error_response(request, version, ERROR), version)
        found.update(error_codes(decode(API[key].response, version, encoded)))
    assert found - {ErrorCode.NONE} == {ERROR}


@pytest.mark.parametrize("version", range(14))
def test_injected_metadata_error_is_set_for_each_topic_and_the_response_still_lists_the_brokers(version: int) -> None:
    partition = metadata.MetadataResponsePartition(partition_index=0, leader_id=1)
    response = metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host="h", port=1)],
        topics=[metadata.MetadataResponseTopic(name="a", partitions=[partition])],
    )
    set_metadata_error(response, ERROR)
    decoded = decode(metadata.MetadataResponse, version, encode_joined(response, version))
    assert [(topic.name, topic.error_code, topic.partitions) for topic in decoded.topics] == [("a", ERROR, [])]
    assert [broker.host for broker in decoded.brokers] == ["h"]
