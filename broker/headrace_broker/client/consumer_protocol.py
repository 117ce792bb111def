"""The bytes that members of protocol type `consumer` exchange through the coordinator: subscriptions and assignments.

Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0-3, and the user data of the sticky
assignor. Written in version 3 (assignments: 0, the bytes being the same); newer versions are read as version 3, which
is what Kafka promises to allow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace_broker.client.errors import ProtocolViolationError
from headrace_broker.protocol.topic_names import TopicPartition, by_topic

SUBSCRIPTION_VERSION = 3


@dataclass(slots=True)
class Subscription:
    """What a member wants to read, and what it holds."""

    topics: list[str]
    user_data: bytes | None = None
    owned: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the metadata bytes of a member."""
    writer = _Writer()
    writer.int16(SUBSCRIPTION_VERSION)
    writer.strings(sorted(subscription.topics))
    writer.nullable_bytes(subscription.user_data)
    writer.partitions(subscription.owned)
    writer.int32(subscription.generation_id)
    writer.nullable_string(subscription.rack_id)
    return b"".join(writer.parts)


def decode_subscription(data: bytes) -> Subscription:
    """Return the subscription in a member's metadata. Raises ProtocolViolationError."""
    reader = _Reader(data, "subscription")
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
    """Return the bytes of one member's assignment."""
    writer = _Writer()
    writer.int16(0)
    writer.partitions(partitions)
    writer.nullable_bytes(user_data)
    return b"".join(writer.parts)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment; no bytes at all mean none. Raises ProtocolViolationError."""
    if not data:
        return []
    reader = _Reader(data, "assignment")
    reader.int16()
    return reader.partitions()


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Return the previous assignment and its generation, as the sticky assignor passes them on."""
    writer = _Writer()
    writer.partitions(owned)
    writer.int32(generation_id)
    return b"".join(writer.parts)


def decode_sticky_user_data(data: bytes) -> tuple[list[TopicPartition], int]:
    """Return (previous assignment, its generation or -1). Raises ProtocolViolationError."""
    reader = _Reader(data, "sticky user data")
    owned = reader.partitions()
    return owned, reader.int32() if reader.left >= 4 else -1


class _Writer:
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
        grouped = by_topic(sorted(partitions))
        self.int32(len(grouped))
        for topic, numbers in grouped.items():
            self.string(topic)
            self.parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))


class _Reader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self._what = what

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise ProtocolViolationError(f"{self._what} of a group member: {size} bytes asked, {self.left} left")
        self._position += size
        return self._data[self._position - size : self._position]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def string(self) -> str:
        return self.take(self.int16()).decode("utf-8", "replace")

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self.take(size).decode("utf-8", "replace")

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self.take(size)

    def strings(self) -> list[str]:
        return [self.string() for _ in range(self.count(2))]

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self.count(6)):
            topic = self.string()
            found += [(topic, self.int32()) for _ in range(self.count(4))]
        return found

    def count(self, item_size_min: int) -> int:
        """Return an array's length, which cannot be larger than the bytes left allow; null is empty."""
        count = self.int32()
        if count * item_size_min > self.left:
            raise ProtocolViolationError(f"{self._what} of a group member: {count} items in {self.left} bytes")
        return max(count, 0)
