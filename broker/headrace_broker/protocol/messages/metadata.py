"""Metadata (3): request the brokers, the controller, and the leaders and replicas of the topics' partitions.

From version 1 on a null topic list requests all topics and an empty list requests no topics. In version 0 an empty list
requests all topics.

Changes by version:

* 4: the client may forbid the automatic creation of topics.
* 8: the client may request authorized operations.
* 9 is flexible.
* 10 adds topic ids to the response.
* 12: the client may request topics by id.
* 13 adds a top-level error code, which can tell the client to connect to its bootstrap servers again (KIP-1102).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int16, int32, string, uuid


class MetadataResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, "5+", ignorable=True)


class MetadataResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable="12+")
    topic_id: bytes = uuid("10+", ignorable=True)
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+", ignorable=True)


class MetadataRequestTopic(Message):
    topic_id: bytes = uuid("10+", ignorable=True)
    name: str | None = string(nullable="10+")


class MetadataRequest(Request[MetadataResponse], api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")
