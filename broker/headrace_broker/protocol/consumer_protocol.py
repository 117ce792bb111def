"""The subscriptions and assignments of members of `consumer` groups.

Each subscription or assignment is encoded as an int16 version and a message.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, array, binary, int32, string


class ConsumerProtocolTopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The topics that a member subscribes to, and the partitions it owns."""

    topics: list[str] = array(string)
    user_data: bytes | None = binary(nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolTopicPartition] = array(ConsumerProtocolTopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions that are assigned to a member."""

    assigned_partitions: list[ConsumerProtocolTopicPartition] = array(ConsumerProtocolTopicPartition)
    user_data: bytes | None = binary(nullable="0+", default=None)
