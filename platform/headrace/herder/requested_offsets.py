"""Parses the offsets of a request to alter offsets (KIP-875), with the checks and texts of Kafka Connect.

The partitions and offsets of a source are JSON objects of primitive values. For a sink, a partition is
`{"kafka_topic": T, "kafka_partition": N}`, and its offset is `{"kafka_offset": N}` or null. Numbers may be strings.
This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.herder.errors import BadRequestError
from headrace.herder.herder import OffsetPairs, RequestedOffsets

_TOPIC, _PARTITION, _OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT32_MAX, _INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


def source_offsets(requested: RequestedOffsets) -> OffsetPairs:
    """Return the offsets of a source connector. Raises BadRequestError."""
    pairs = []
    for partition, offset in requested:
        if partition is None:
            raise BadRequestError("The partition for a source connector offset cannot be null or missing")
        for name, value in (*partition.items(), *(offset or {}).items()):
            if isinstance(value, (dict, list)):
                kind = "MAP" if isinstance(value, dict) else "ARRAY"
                raise BadRequestError(
                    f"Offsets may only contain primitive types as values, but field {name} contains {kind}"
                )
        pairs.append((partition, offset))
    return pairs


def sink_offsets(requested: RequestedOffsets) -> OffsetPairs:
    """Return the offsets of a sink connector.

    If a partition is repeated, its last offset counts. Raises BadRequestError.
    """
    found: dict[tuple[str, int], dict[str, int] | None] = {}
    for partition, offset in requested:
        key = _parse_partition(partition)
        found[key] = _parse_offset(offset)
    return [({_TOPIC: topic, _PARTITION: number}, offset) for (topic, number), offset in found.items()]


def _parse_partition(partition: Mapping[str, Any] | None) -> tuple[str, int]:
    if partition is None:
        raise BadRequestError("The partition for a sink connector offset cannot be null or missing")
    if _TOPIC not in partition or _PARTITION not in partition:
        raise BadRequestError(
            f"The partition for a sink connector offset must contain the keys '{_TOPIC}' and '{_PARTITION}'"
        )
    topic, number = partition[_TOPIC], partition[_PARTITION]
    if topic is None:
        raise BadRequestError("Kafka topic names must be valid strings and may not be null")
    if number is None:
        raise BadRequestError("Kafka partitions must be valid numbers and may not be null")
    parsed = _integer(number, _INT32_MAX)
    if parsed is None:
        raise BadRequestError(
            f"Failed to parse the following Kafka partition value in the provided offsets: '{number}'. Partition "
            "values for sink connectors need to be integers."
        )
    return str(topic), parsed


def _parse_offset(offset: Mapping[str, Any] | None) -> dict[str, int] | None:
    if offset is None:
        return None
    if _OFFSET not in offset:
        raise BadRequestError(f"The offset for a sink connector should either be null or contain the key '{_OFFSET}'")
    parsed = _integer(offset[_OFFSET], _INT64_MAX)
    if parsed is None:
        raise BadRequestError(
            f"Failed to parse the following Kafka offset value in the provided offsets: '{offset[_OFFSET]}'. Offset "
            "values for sink connectors need to be integers."
        )
    if parsed < 0:
        raise BadRequestError(f"The offset {parsed} is negative, but must be at least 0")
    return {_OFFSET: parsed}


def _integer(value: Any, highest: int) -> int | None:
    """Parse a number or a string as Java's `parseInt` and `parseLong` do. Return None if that fails."""
    if isinstance(value, bool) or not _INTEGER.fullmatch(text := str(value)):
        return None
    number = int(text)
    return number if -highest - 1 <= number <= highest else None
