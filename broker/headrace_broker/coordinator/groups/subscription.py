"""Reads the topics of a consumer's subscription.

Format of the embedded consumer protocol, any version: int16 version, int32 count, topic names (int16 length, UTF-8),
then fields that only clients read.  The offsets of a subscribed topic do not expire, and OffsetDelete rejects them.  If
a subscription cannot be parsed, its member still joins the group and the subscribed topics are unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the union of the subscriptions' topics, None if one of them cannot be parsed."""
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
