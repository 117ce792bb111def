"""Offset keys and values as JSON bytes, with map entries in Java's order, and the types that they may contain.

The key of a source offset is `["<connector>",{<partition>}]`, and the value is `{<offset>}`. Java writes maps in
`HashMap` order. This module uses the same order, because compaction and partitioning of the offsets topic depend on the
exact bytes. This module does no I/O.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.data.errors import DataError
from headrace.data.java import hash_map_order
from headrace.data.schema import INT_RANGES, Type
from headrace.stores.connect_json import encode

Partition = Mapping[str, Any]
Offset = Mapping[str, Any]
_PRIMITIVE_TYPES = frozenset({type(None), bool, int, float, str})
_INT64_MIN, _INT64_MAX = INT_RANGES[Type.INT64]


def check_types(kind: str, value: Any) -> None:
    """Raise DataError unless `value` is a map of strings to JSON primitives, as in Kafka Connect's OffsetUtils.

    `kind` is "Source offset" or "Source partition". JSON has no other primitive types: a task would read a datetime or
    bytes as a string after a restart. Subclasses of the types are rejected for the same reason. Integers have 64 bits,
    as in Java.
    """
    if not isinstance(value, dict | Mapping):  # dict first, because isinstance with Mapping alone is slow
        raise DataError(f"{kind} {value!r} has the type {type(value).__name__}: it must be a map")
    for name, item in value.items():
        if type(name) is not str or not _can_be_stored(item):
            raise DataError(f"{kind} {value!r}: {_problem_of(name, item)}")


def _can_be_stored(item: Any) -> bool:
    kind = type(item)
    if kind is int:
        return bool(_INT64_MIN <= item <= _INT64_MAX)
    return kind in _PRIMITIVE_TYPES and (kind is not float or math.isfinite(item))


def _problem_of(name: Any, item: Any) -> str:
    if type(name) is not str:
        return f"the key {name!r} has the type {type(name).__name__}: it must be a str"
    if type(item) not in _PRIMITIVE_TYPES:
        return (
            f"the value of {name!r} has the type {type(item).__name__}: it must be None, a bool, an int, a float or a "
            "str. Convert it, for example a datetime with isoformat()"
        )
    return f"the value of {name!r} is {item}: it must be a 64-bit integer or a finite number"


def requested_partitions(partitions: Iterable[Partition]) -> list[dict[str, Any]]:
    """Return copies of the source partitions whose offsets a task or connector reads. Raises DataError."""
    wanted = [dict(partition) for partition in partitions]
    for partition in wanted:
        check_types("Source partition", partition)
    return wanted


def encode_key(connector: str, partition: Partition) -> bytes:
    """Encode the key of a connector's source partition."""
    return encode([connector, in_hashmap_order(partition)])


def encode_value(offset: Offset | None) -> bytes | None:
    """Encode the value of an offset. None becomes a tombstone."""
    return None if offset is None else encode(in_hashmap_order(offset))


def decode_key(key: bytes) -> tuple[str, dict[str, Any]]:
    """Split a key into connector and partition. Raises ValueError if the bytes are not an offset key."""
    parsed = _parse(key)
    match parsed:
        case [str(connector), dict(partition)]:
            return connector, partition
    raise ValueError(f"not an offset key: {key[:200]!r}")


def decode_value(value: bytes | None) -> dict[str, Any] | None:
    """Parse an offset. Raises ValueError if the bytes are not a JSON object."""
    if value is None:
        return None
    parsed = _parse(value)
    if parsed is not None and not isinstance(parsed, dict):
        raise ValueError(f"not an offset: {value[:200]!r}")
    return parsed


def _parse(text: bytes) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON, and for NaN and infinite numbers, which JSON cannot represent."""
    return json.loads(text, parse_constant=_reject, parse_float=_finite)


def _reject(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject(text)


def canonical(partition: Partition) -> str:
    """Return a string for lookups. Equal partitions have equal strings, whatever the order of their fields."""
    return json.dumps(partition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def in_hashmap_order(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries in the iteration order of a Java `HashMap` into which they were put in this order."""
    return {key: mapping[key] for key in hash_map_order(mapping)}
