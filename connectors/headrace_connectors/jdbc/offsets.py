"""Source partitions and source offsets of the JDBC source. This module does no I/O.

The source partitions and offsets have the format of Confluent's connector, so this connector can continue from the
offsets that Confluent's connector has stored, and vice versa.

- The source partition of a table is `{"protocol": "1", "table": "<schema.table>"}`. Offsets that were stored with the
  older source partition `{"table": "<table>"}` are read too.
- The source partition of a custom query is `{"query": "query"}`.
- A source offset contains `"incrementing": id`, or `"timestamp": ms` and `"timestamp_nanos": n`, or all of them.
  `timestamp_nanos` is the whole fraction of the second in nanoseconds, including the milliseconds of `timestamp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_connectors.common.instants import SECOND_US
from headrace_connectors.jdbc.names import table_of, unquoted

QUERY_PARTITION: Mapping[str, str] = {"query": "query"}


@dataclass(frozen=True, slots=True)
class TimestampIncrementingOffset:
    """A source offset: the timestamp (an instant) and the incrementing value of the last row that was read.

    A value is None if the mode does not use it, or if no row has been read. `wall_clock` is the row's timestamp before
    its conversion to UTC, if the timestamp column has no time zone. It is not stored. It is necessary because different
    wall-clock times can have the same `timestamp`. For example, if clocks are set forward from 02:00 to 03:00, a column
    can still contain the skipped time 02:30, which is converted to the same UTC time as 03:30.
    """

    timestamp: int | None = None
    incrementing: int | None = None
    wall_clock: int | None = None

    def to_map(self) -> dict[str, int]:
        """Return the offset as the map that Connect stores."""
        offset: dict[str, int] = {}
        if self.incrementing is not None:
            offset["incrementing"] = self.incrementing
        if self.timestamp is not None:
            offset["timestamp"] = self.timestamp // 1000
            offset["timestamp_nanos"] = self.timestamp % SECOND_US * 1000
        return offset

    def without_incrementing(self) -> TimestampIncrementingOffset:
        """Return the offset from which mode=timestamp continues after mode=timestamp+incrementing.

        This offset may be between rows with equal timestamps. The returned offset is before all of them.
        """
        if self.incrementing is None or self.timestamp is None:
            return self
        return TimestampIncrementingOffset(self.timestamp - 1)

    @classmethod
    def from_map(cls, offset: Mapping[str, Any] | None) -> TimestampIncrementingOffset:
        """Parse the map that Connect stores. None or an empty map means that no row has been read."""
        if not offset:
            return cls()
        timestamp = None
        if offset.get("timestamp") is not None:
            timestamp = int(offset["timestamp"]) * 1000
            if offset.get("timestamp_nanos") is not None:
                timestamp += int(offset["timestamp_nanos"]) // 1000 - timestamp % SECOND_US
        incrementing = offset.get("incrementing")
        return cls(timestamp, None if incrementing is None else int(incrementing))


def table_partition(qualified_name: str) -> dict[str, str]:
    """Return the source partition of a table."""
    return {"protocol": "1", "table": unquoted(qualified_name)}


def legacy_partitions(qualified_name: str) -> list[dict[str, str]]:
    """Return the source partitions that older versions of Confluent's connector used for the table, newest first."""
    return [{"table": table_of(qualified_name)}]
