"""Validates the source offsets that a user wants to store with `PATCH /connectors/NAME/offsets`.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.api.errors import ConnectError
from headrace.data.schema import INT_RANGES, Type
from headrace_connectors.jdbc.initial_load import OFFSET_FIELD, InitialLoad
from headrace_connectors.jdbc.offsets import QUERY_PARTITION
from headrace_connectors.jdbc.source_config import JdbcSourceConfig

_INTEGER_FIELDS = ("incrementing", "timestamp", "timestamp_nanos")
_NANOS_PER_SECOND = 1_000_000_000
_RANGE = re.compile(r"-?\d+\.\.-?\d+")
_PARTITIONS = (
    'must be {"protocol": "1", "table": "schema.table"}, {"table": "table"} (an older form) or {"query": "query"}; a '
    'part of an initial load also has the key "range", with a value such as "1..1000"'
)


def validate_source_offset(config: JdbcSourceConfig, partition: Mapping[str, Any], offset: Mapping[str, Any]) -> None:
    """Raise ConnectError if the source partition or the source offset is invalid, or has no effect in `config.mode`."""
    if not _is_partition(partition):
        raise ConnectError(f"The source partition {dict(partition)} is invalid: it {_PARTITIONS}")
    problem = _problem_of(offset) or _problem_in_mode(config, partition, offset)
    if problem:
        raise ConnectError(
            f"The source offset {dict(offset)} of source partition {dict(partition)} is invalid: {problem}"
        )


def _is_partition(partition: Mapping[str, Any]) -> bool:
    if dict(partition) == dict(QUERY_PARTITION):
        return True
    table = partition.get("table")
    if not isinstance(table, str) or not table:
        return False
    if set(partition) == {"protocol", "table", "range"}:
        numbers = partition["range"]
        return partition["protocol"] == "1" and isinstance(numbers, str) and _RANGE.fullmatch(numbers) is not None
    return set(partition) == {"table"} or (set(partition) == {"protocol", "table"} and partition["protocol"] == "1")


def _problem_of(offset: Mapping[str, Any]) -> str:
    """Return what is wrong with a source offset, or an empty string if it is valid."""
    known = (*_INTEGER_FIELDS, OFFSET_FIELD)
    if unknown := [name for name in offset if name not in known]:
        return f"unknown key {', '.join(map(repr, unknown))}; the keys are {', '.join(known)}"
    for name in _INTEGER_FIELDS:
        if name in offset and (isinstance(offset[name], bool) or not isinstance(offset[name], int)):
            unit = ", the milliseconds since 1970-01-01T00:00:00Z" if name == "timestamp" else ""
            return f"{name} must be an integer{unit}, but is {offset[name]!r}"
    if not _is_int64(offset.get("incrementing", 0)):
        return f"incrementing must be from -2^63 to 2^63-1, but is {offset['incrementing']}"
    nanos = offset.get("timestamp_nanos")
    if nanos is not None and "timestamp" not in offset:
        return "timestamp_nanos is the fraction of the second of timestamp, so timestamp must be set too"
    if nanos is not None and not 0 <= nanos < _NANOS_PER_SECOND:
        return f"timestamp_nanos must be from 0 to 999999999, but is {nanos}"
    if not _is_int64(offset.get("timestamp", 0)):
        return f"timestamp must be from -2^63 to 2^63-1, but is {offset['timestamp']}"
    if OFFSET_FIELD in offset and not _is_initial_load(offset[OFFSET_FIELD]):
        return (
            f"{OFFSET_FIELD} must be the text FIRST:LAST:CHUNKS:STARTED_MS:CREATED_MS of an earlier offset, but is "
            f"{offset[OFFSET_FIELD]!r}"
        )
    return ""


def _problem_in_mode(config: JdbcSourceConfig, partition: Mapping[str, Any], offset: Mapping[str, Any]) -> str:
    """Return the reason why a source offset has no effect in the mode `config.mode`.

    Return an empty string if the source offset has an effect, or if the source offset is empty.
    """
    if not offset:
        return ""
    if config.mode == "bulk":
        return f"{next(iter(offset))} has no effect, because mode=bulk has no source offsets; set the offset to null"
    needed = "timestamp" if config.uses_timestamp and "range" not in partition else "incrementing"
    if needed in offset:
        return ""
    return f"{needed} is missing; with mode={config.mode}, the offset has no effect without it"


def _is_int64(number: int) -> bool:
    smallest, largest = INT_RANGES[Type.INT64]
    return smallest <= number <= largest


def _is_initial_load(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        load = InitialLoad.from_offset({OFFSET_FIELD: text})
        if load is None or not all(map(_is_int64, (load.first, load.last, load.started_ms))):
            return False
        return load.chunks >= 1
    except (TypeError, ValueError, OverflowError):
        return False
