"""What members of protocol type `consumer` put into a group's opaque bytes: a version as int16, then one of these."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, array, binary, int32, string


class ConsumerProtocolTopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """What a member wants to read, and what it holds."""

    topics: list[str] = array(string)
    user_data: bytes | None = binary(nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolTopicPartition] = array(ConsumerProtocolTopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """What a member is to read."""

    assigned_partitions: list[ConsumerProtocolTopicPartition] = array(ConsumerProtocolTopicPartition)
    user_data: bytes | None = binary(nullable="0+", default=None)
