"""Reads the topic names in a consumer's subscription.

In every version of the embedded consumer protocol, a subscription is an int16 version, an int32 count, the topic names
(int16 length, UTF-8), and fields that only clients read. The offsets of a subscribed topic do not expire, and an
OffsetDelete request cannot delete them. If a member's subscription cannot be parsed, the member still joins the group,
but the group's subscribed topics are then unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions, or None if a subscription cannot be parsed."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_topics(subscription))
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str]:
    _version, count = struct.unpack_from(">hi", subscription, 0)
    if not 0 <= count <= len(subscription) // 2:
        raise ValueError(f"A subscription of {len(subscription)} bytes cannot contain {count} topics")
    position, topics = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", subscription, position)
        position += 2
        if length < 0 or position + length > len(subscription):
            raise ValueError(
                f"Error reading string of length {length}, only {len(subscription) - position} bytes available"
            )
        topics.append(subscription[position : position + length].decode())
        position += length
    return topics
