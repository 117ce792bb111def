"""CreateTopics (19): create topics, or only validate the request.

From version 4 on, a partition count or replication factor of -1 means the cluster's default. Version 5 is flexible and
returns the new topic's configs, and version 7 returns the new topic's id.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)


class CreatableTopicConfigs(Message):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = int8(default=-1, ignorable=True)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Message):
    name: str = string()
    topic_id: bytes = uuid("7+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", ignorable=True)
    topic_config_error_code: int = int16("5+", ignorable=True, tag=0)
    num_partitions: int = int32("5+", default=-1, ignorable=True)
    replication_factor: int = int16("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+", ignorable=True)


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class CreatableReplicaAssignment(Message):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


class CreatableTopicConfig(Message):
    name: str = string()
    value: str | None = string(nullable="0+")


class CreatableTopic(Message):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request[CreateTopicsResponse], api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()
