"""Collects the records of small `send` calls in one batch per partition, and splits large calls by size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace_broker.client.delivery import DeliveryPart
from headrace_broker.records.builder import split
from headrace_broker.records.columns import RecordColumns, RecordHeaders

RECORD_OVERHEAD_BYTES = 12
"""Approximate overhead of a record besides its key and value: lengths, deltas, attributes."""


@dataclass(slots=True)
class Accumulator:
    """Buffers the records of small `send` calls for one partition.

    `opened_ms` is the time of the first `send` call whose records are buffered.
    """

    topic: str
    partition: int
    opened_ms: float
    parts: list[RecordColumns] = field(default_factory=list)
    delivery_parts: list[DeliveryPart] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, columns: RecordColumns, size_bytes: int, delivery_part: DeliveryPart) -> None:
        """Add the records of one `send` call."""
        self.parts.append(columns)
        self.delivery_parts.append(delivery_part)
        self.size_bytes += size_bytes

    def split_by_send(self) -> list[Accumulator]:
        """Return one accumulator for the records of each `send` call."""
        singles = []
        for part, delivery_part in zip(self.parts, self.delivery_parts, strict=True):
            single = Accumulator(self.topic, self.partition, self.opened_ms)
            single.add(part, min(estimate_bytes(part), self.size_bytes), delivery_part)
            singles.append(single)
        return singles

    def columns(self) -> RecordColumns:
        """Return all records, in the order of the `send` calls."""
        if len(self.parts) == 1:
            return self.parts[0]
        return concatenate(self.parts)


def concatenate(parts: list[RecordColumns]) -> RecordColumns:
    """Return the records of all `parts` as one `RecordColumns`."""
    keys = headers = None
    if any(part.keys is not None for part in parts):
        keys = [key for part in parts for key in (part.keys or [None] * len(part))]
    if any(part.headers is not None for part in parts):
        headers = [header for part in parts for header in (part.headers or [[] for _ in range(len(part))])]
    first = parts[0].timestamps
    is_same = isinstance(first, int) and all(part.timestamps == first for part in parts)
    has_same_framing = len({(part.before, part.after) for part in parts}) == 1
    return RecordColumns(
        values=[value for part in parts for value in (part.values if has_same_framing else part.whole_values())],
        keys=keys,
        headers=headers,
        timestamps=first if is_same else [stamp for part in parts for stamp in part.timestamp_list()],
        before=parts[0].before if has_same_framing else b"",
        after=parts[0].after if has_same_framing else b"",
    )


def estimate_bytes(columns: RecordColumns) -> int:
    """Return an upper bound on the size of these records in a batch, uncompressed and without the batch header."""
    size = len(columns) * (RECORD_OVERHEAD_BYTES + len(columns.before) + len(columns.after))
    size += sum(columns.value_lengths())
    if columns.keys is not None:
        size += _bytes_in(columns.keys)
    if columns.headers is not None:
        shared = columns.shared_headers()
        if shared is not None:
            size += len(columns) * _headers_bytes(shared)
        else:
            size += sum(map(_headers_bytes, columns.headers))
    return size


def split_into_runs(
    columns: RecordColumns, size_bytes: int, size_bytes_max: int
) -> Iterator[tuple[RecordColumns, int]]:
    """Split the records by size, and yield (columns, estimated bytes) of each group of consecutive records.

    Each group has at most `size_bytes_max` estimated bytes. A record with a larger estimated size forms a group of its
    own. `size_bytes` is the estimated size of all records together.
    """
    count = len(columns)
    if size_bytes <= size_bytes_max or count == 1:
        yield columns, size_bytes
        return
    step = max(int(count * size_bytes_max / size_bytes * 0.98), 1)
    for start in range(0, count, step):
        run = columns.slice(start, min(start + step, count))
        run_bytes = estimate_bytes(run)
        if run_bytes <= size_bytes_max or len(run) == 1:
            yield run, run_bytes
        else:  # the records have very different sizes: estimate each record
            for part in split(run, size_bytes_max):
                yield part, estimate_bytes(part)


def _headers_bytes(headers: RecordHeaders) -> int:
    return sum(3 * len(name) + len(value or b"") + 4 for name, value in headers)


def _bytes_in(column: list[bytes | None]) -> int:
    try:
        return sum(map(len, column))  # type: ignore[arg-type]  # a None value is rare; it raises TypeError
    except TypeError:
        return sum(len(value) for value in column if value is not None)
