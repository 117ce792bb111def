"""Chooses the version of an API to use with a node: the newest version that the node and this client support.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_broker.client.errors import UnsupportedVersionError
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.notation import VERSION_MAX, Message

VersionRanges = Mapping[int, tuple[int, int]]


def choose_version(
    message: type[Message], ranges: VersionRanges, broker: str, *, at_least: int = 0, at_most: int = VERSION_MAX
) -> int:
    """Return the version, from `at_least` to `at_most`, to use for this request class.

    `ranges` contains the versions that the node supports for each API key. Raises UnsupportedVersionError. Its message
    contains `broker` (the node's name), the API and both version ranges.
    """
    key = message.__api_key__
    api = API[key]
    low, high = max(message.__versions__[0], at_least), min(api.max_version, at_most)
    offered = ranges.get(key)
    name = api.name
    if offered is None:
        why = ""
        if ApiKey.BROKER_HEARTBEAT in ranges and ApiKey.METADATA not in ranges:
            why = ": that is a controller's port, for traffic between nodes; use the address of a broker's listener"
        raise UnsupportedVersionError(f"{broker} does not support {name}{why}")
    version = min(high, offered[1])
    if version < max(low, offered[0]):
        raise UnsupportedVersionError(
            f"{broker} supports {name} versions {offered[0]}-{offered[1]}, but this client needs {low}-{high}"
        )
    return version
