"""ConsumerGroupHeartbeat (68): join, stay in, and leave a group of the consumer protocol (KIP-848).

A request contains the values that have changed since the member's previous heartbeat. The other
fields are null. In version 1, a member generates its own id, and can subscribe to all topics that
match a regular expression.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    int16,
    int32,
    nullable_struct,
    string,
    uuid,
)


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment)


class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse], api_key=68, versions="0-1", flexible="0+"):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+", default=None)
