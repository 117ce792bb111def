"""The consumer protocol's subscriptions and assignments, which members exchange through the coordinator.

This module implements versions 0-3 of Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, and the user
data of the sticky assignor. It encodes subscriptions in version 3 and assignments in version 0. Versions 0 and 3 of an
assignment have the same fields. Newer versions are decoded as version 3, as Kafka's compatibility rules allow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace_broker.client.errors import ProtocolViolationError
from headrace_broker.protocol.topic_names import TopicPartition, group_by_topic

SUBSCRIPTION_VERSION = 3


@dataclass(slots=True)
class Subscription:
    """A member's subscribed topics and owned partitions."""

    topics: list[str]
    user_data: bytes | None = None
    owned: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """Return a member's encoded subscription, which its JoinGroup request contains as metadata."""
    writer = _ByteWriter()
    writer.int16(SUBSCRIPTION_VERSION)
    writer.strings(sorted(subscription.topics))
    writer.nullable_bytes(subscription.user_data)
    writer.partitions(subscription.owned)
    writer.int32(subscription.generation_id)
    writer.nullable_string(subscription.rack_id)
    return b"".join(writer.parts)


def decode_subscription(data: bytes) -> Subscription:
    """Decode a member's subscription from the metadata of its JoinGroup request. Raises ProtocolViolationError."""
    reader = _ByteReader(data, "subscription")
    version = reader.int16()
    subscription = Subscription(reader.strings(), reader.nullable_bytes())
    if version >= 1:
        subscription.owned = reader.partitions()
    if version >= 2:
        subscription.generation_id = reader.int32()
    if version >= 3:
        subscription.rack_id = reader.nullable_string()
    return subscription


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Return one member's encoded assignment."""
    writer = _ByteWriter()
    writer.int16(0)
    writer.partitions(partitions)
    writer.nullable_bytes(user_data)
    return b"".join(writer.parts)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode the partitions of an assignment. Empty bytes mean no partitions. Raises ProtocolViolationError."""
    if not data:
        return []
    reader = _ByteReader(data, "assignment")
    reader.int16()
    return reader.partitions()


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Encode the previous assignment and its generation as user data of the sticky assignor."""
    writer = _ByteWriter()
    writer.partitions(owned)
    writer.int32(generation_id)
    return b"".join(writer.parts)


def decode_sticky_user_data(data: bytes) -> tuple[list[TopicPartition], int]:
    """Decode the sticky assignor's user data: (previous assignment, generation or -1).

    Raises ProtocolViolationError.
    """
    reader = _ByteReader(data, "sticky user data")
    owned = reader.partitions()
    return owned, reader.int32() if reader.remaining >= 4 else -1


class _ByteWriter:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def int16(self, value: int) -> None:
        self.parts.append(struct.pack(">h", value))

    def int32(self, value: int) -> None:
        self.parts.append(struct.pack(">i", value))

    def string(self, value: str) -> None:
        data = value.encode()
        self.int16(len(data))
        self.parts.append(data)

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def nullable_bytes(self, value: bytes | None) -> None:
        self.int32(-1 if value is None else len(value))
        self.parts.append(value or b"")

    def strings(self, values: Sequence[str]) -> None:
        self.int32(len(values))
        for value in values:
            self.string(value)

    def partitions(self, partitions: Iterable[TopicPartition]) -> None:
        grouped = group_by_topic(sorted(partitions))
        self.int32(len(grouped))
        for topic, numbers in grouped.items():
            self.string(topic)
            self.parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))


class _ByteReader:
    def __init__(self, data: bytes, kind: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self._kind = kind

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def read(self, size: int) -> bytes:
        if size < 0 or size > self.remaining:
            raise ProtocolViolationError(
                f"{self._kind} of a group member: error reading {size} bytes, only {self.remaining} bytes available"
            )
        self._position += size
        return self._data[self._position - size : self._position]

    def int16(self) -> int:
        return int.from_bytes(self.read(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.read(4), "big", signed=True)

    def string(self) -> str:
        return self.read(self.int16()).decode("utf-8", "replace")

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self.read(size).decode("utf-8", "replace")

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self.read(size)

    def strings(self) -> list[str]:
        return [self.string() for _ in range(self.count(2))]

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self.count(6)):
            topic = self.string()
            found += [(topic, self.int32()) for _ in range(self.count(4))]
        return found

    def count(self, item_size_min: int) -> int:
        """Read the length of an array (0 for a null array).

        Raises ProtocolViolationError if the remaining bytes are too few for items of `item_size_min` bytes.
        """
        count = self.int32()
        if count * item_size_min > self.remaining:
            raise ProtocolViolationError(
                f"{self._kind} of a group member: error reading array of size {count}, "
                f"only {self.remaining} bytes available"
            )
        return max(count, 0)
