"""Offsets as JSON bytes, in the order in which Java writes them. Pure.

A source offset's key is `["<connector>",{<partition>}]`, its value `{<offset>}`. Compaction and partitioning of the
offsets topic work on these bytes, and Java writes maps in `HashMap` order, so the same order is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.data.java import hash_map_order

Partition = Mapping[str, Any]
Offset = Mapping[str, Any]


def encode_key(connector: str, partition: Partition) -> bytes:
    """The key of a connector's source partition."""
    return _compact([connector, in_hashmap_order(partition)])


def encode_value(offset: Offset | None) -> bytes | None:
    """The value of an offset; None is a tombstone."""
    return None if offset is None else _compact(in_hashmap_order(offset))


def decode_key(key: bytes) -> tuple[str, dict[str, Any]]:
    """Split a key into connector and partition. Raises ValueError when it is none."""
    parsed = json.loads(key)
    match parsed:
        case [str(connector), dict(partition)]:
            return connector, partition
    raise ValueError(f"not an offset key: {key[:200]!r}")


def decode_value(value: bytes | None) -> dict[str, Any] | None:
    """Parse an offset. Raises ValueError when it is no JSON object."""
    if value is None:
        return None
    parsed = json.loads(value)
    if parsed is not None and not isinstance(parsed, dict):
        raise ValueError(f"not an offset: {value[:200]!r}")
    return parsed


def canonical(partition: Partition) -> str:
    """A text equal for equal partitions, whatever the order of their keys: what look-ups compare."""
    return json.dumps(partition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def in_hashmap_order(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The entries in the order in which a Java `HashMap` that took them one by one walks them."""
    return {key: mapping[key] for key in hash_map_order(mapping)}


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
