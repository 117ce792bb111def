"""The topics in a consumer's subscription, as far as the coordinator needs them.

Consumer embedded protocol, any version: int16 version, int32 count, topic names (int16 length, UTF-8), then parts
that only clients read. Only used to tell which offsets are in use (expiry, OffsetDelete); a subscription that cannot
be read is never an error for the client that sent it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The union of the subscriptions' topics, or None when one of them cannot be read."""
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
        raise ValueError(f"{count} topics in {len(subscription)} bytes")
    position, topics = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", subscription, position)
        position += 2
        if length < 0 or position + length > len(subscription):
            raise ValueError(f"a topic name of {length} bytes")
        topics.append(subscription[position : position + length].decode())
        position += length
    return topics
