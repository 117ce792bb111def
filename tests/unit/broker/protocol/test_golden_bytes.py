"""Compares encoded messages with bytes that were derived by hand from the protocol's specification."""

from __future__ import annotations

import pytest

from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DeleteGroupsResponse,
    DescribeTopicPartitionsRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
    TxnOffsetCommitRequest,
)
from headrace_broker.protocol.messages.api_versions import ApiVersion, FinalizedFeatureKey
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_topic_partitions import Cursor, TopicRequest
from headrace_broker.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    PartitionData,
)
from headrace_broker.protocol.messages.metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace_broker.protocol.messages.produce import LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace_broker.protocol.notation import Message

ID = bytes(range(16))

METADATA = MetadataResponse(
    brokers=[MetadataResponseBroker(node_id=1, host="h", port=9092)],
    cluster_id="c",
    controller_id=1,
    topics=[
        MetadataResponseTopic(
            name="t",
            topic_id=ID,
            partitions=[
                MetadataResponsePartition(leader_id=1, leader_epoch=2, replica_nodes=[1], isr_nodes=[1]),
            ],
        )
    ],
)
LED_ELSEWHERE = PartitionProduceResponse(
    error_code=6, base_offset=-1, log_start_offset=-1, current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
)
DIVERGED = PartitionData(
    partition_index=1,
    high_watermark=5,
    log_start_offset=0,
    diverging_epoch=EpochEndOffset(epoch=2, end_offset=7),
    aborted_transactions=[AbortedTransaction(producer_id=9, first_offset=3)],
    records=b"abc",
)

GOLDEN: list[tuple[Message, int, str]] = [
    (ApiVersionsRequest(), 0, ""),
    (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3, "02 61 02 31 00"),
    (
        ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=4)]),
        0,
        "0023 00000001 0012 0000 0004",
    ),
    (
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=18, max_version=4)],
            finalized_features_epoch=5,
            finalized_features=[FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1)],
        ),
        3,
        "0000 02 0012 0000 0004 00 00000000 02 01 08 0000000000000005 02 08 02 02 66 0002 0001 00",
    ),
    (MetadataRequest(topics=[]), 0, "00000000"),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (MetadataRequest(topics=None), 12, "00 01 00 00"),
    (
        METADATA,
        5,
        "00000000 00000001 00000001 0001 68 00002384 ffff 0001 63 00000001"
        " 00000001 0000 0001 74 00 00000001 0000 00000000 00000001 00000001 00000001 00000001 00000001 00000000",
    ),
    (
        METADATA,
        12,
        "00000000 02 00000001 02 68 00002384 00 00 02 63 00000001"
        " 02 0000 02 74 000102030405060708090a0b0c0d0e0f 00"
        " 02 0000 00000000 00000001 00000002 02 00000001 02 00000001 01 00 80000000 00 00",
    ),
    (
        ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse()])]),
        3,
        "00000001 0001 74 00000001 00000000 0000 0000000000000000 ffffffffffffffff 00000000",
    ),
    (
        ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[LED_ELSEWHERE])]),
        10,
        "02 02 74 02 00000000 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff 01 00"
        " 01 00 09 00000003 00000004 00 00 00000000 00",
    ),
    (
        FetchResponse(session_id=1, responses=[FetchableTopicResponse(topic_id=ID, partitions=[DIVERGED])]),
        13,
        "00000000 0000 00000001 02 000102030405060708090a0b0c0d0e0f 02 00000001 0000 0000000000000005"
        " ffffffffffffffff 0000000000000000 02 0000000000000009 0000000000000003 00 ffffffff 04 616263"
        " 01 00 0d 00000002 0000000000000007 00 00 00",
    ),
    (DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0, "02 02 74 00 000007d0 ff 00"),
    (
        DescribeTopicPartitionsRequest(response_partition_limit=1, cursor=Cursor(topic_name="t", partition_index=2)),
        0,
        "01 00000001 01 02 74 00000002 00 00",
    ),
    # The property tests do not check this version: it is new in Kafka 4.4, and the implementations that
    # the property tests compare with do not support it.
    (
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=134, error_message="no")]),
        3,
        "00000000 02 02 67 0086 03 6e6f 00 00",
    ),
    (
        TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            producer_epoch=2,
            topics=[
                TxnOffsetCommitRequestTopic(
                    topic_id=ID, partitions=[TxnOffsetCommitRequestPartition(committed_offset=3)]
                )
            ],
        ),
        6,
        "02 78 02 67 0000000000000001 0002 ffffffff 01 00"
        " 02 000102030405060708090a0b0c0d0e0f 02 00000000 0000000000000003 ffffffff 01 00 00 00",
    ),
]


@pytest.mark.parametrize(("message", "version", "expected"), GOLDEN, ids=lambda each: type(each).__name__)
def test_protocol_messages_are_encoded_to_the_bytes_of_the_specification(
    message: Message, version: int, expected: str
) -> None:
    data = bytes.fromhex(expected.replace(" ", ""))
    assert encode_joined(message, version).hex(" ") == data.hex(" ")
    assert encode_joined(decode(type(message), version, data), version) == data
