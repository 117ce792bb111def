"""Where a table reader stands, and how Connect's offset maps say it. Pure.

The maps are Confluent's, so that offsets carry over both ways. The partition is
`{"protocol": "1", "table": "<schema.table>"}`
(read also: `{"table": "<table>"}`) or `{"query": "query"}`; the offset is `{"incrementing": id}` and/or
`{"timestamp": ms, "timestamp_nanos": n}`, where n is the whole fraction of the second.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUERY_PARTITION: Mapping[str, str] = {"query": "query"}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """The last row that was read: its timestamp (aware, UTC) and its incrementing value, where the mode has them."""

    timestamp: dt.datetime | None = None
    incrementing: int | None = None

    def to_map(self) -> dict[str, int]:
        """Connect's offset map."""
        offset: dict[str, int] = {}
        if self.incrementing is not None:
            offset["incrementing"] = self.incrementing
        if self.timestamp is not None:
            offset["timestamp"] = (self.timestamp - _EPOCH) // dt.timedelta(milliseconds=1)
            offset["timestamp_nanos"] = self.timestamp.microsecond * 1000
        return offset

    @classmethod
    def from_map(cls, offset: Mapping[str, Any] | None) -> Position:
        """The position that an offset map says; an absent or empty map is the very beginning."""
        if not offset:
            return cls()
        timestamp = None
        if offset.get("timestamp") is not None:
            timestamp = _EPOCH + dt.timedelta(milliseconds=int(offset["timestamp"]))
            if offset.get("timestamp_nanos") is not None:
                timestamp = timestamp.replace(microsecond=int(offset["timestamp_nanos"]) // 1000)
        incrementing = offset.get("incrementing")
        return cls(timestamp, None if incrementing is None else int(incrementing))


def table_partition(qualified_name: str) -> dict[str, str]:
    """The source partition of a table."""
    return {"protocol": "1", "table": qualified_name}


def older_partitions(qualified_name: str) -> list[dict[str, str]]:
    """Partitions under which older versions kept the same table's offset, newest first."""
    return [{"table": qualified_name.rsplit(".", 1)[-1]}]
