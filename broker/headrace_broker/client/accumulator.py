"""Small sends of one partition, gathered until they make a batch; and columns cut to batches of a size. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace_broker.client.delivery import Share
from headrace_broker.records.builder import split
from headrace_broker.records.columns import RecordColumns

RECORD_OVERHEAD_BYTES = 12
"""About what a record takes beside its key and value: lengths, deltas, attributes."""


@dataclass(slots=True)
class Accumulator:
    """What waits for more records of its partition, since `opened_ms`."""

    topic: str
    partition: int
    opened_ms: float
    pieces: list[RecordColumns] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, columns: RecordColumns, size_bytes: int, share: Share) -> None:
        """Take records in."""
        self.pieces.append(columns)
        self.shares.append(share)
        self.size_bytes += size_bytes

    def singles(self) -> list[Accumulator]:
        """Return each send's records by themselves."""
        singles = []
        for piece, share in zip(self.pieces, self.shares, strict=True):
            single = Accumulator(self.topic, self.partition, self.opened_ms)
            single.add(piece, min(estimate_bytes(piece), self.size_bytes), share)
            singles.append(single)
        return singles

    def columns(self) -> RecordColumns:
        """Return everything gathered, in order."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        return concatenate(self.pieces)


def concatenate(pieces: list[RecordColumns]) -> RecordColumns:
    """Return the records of all pieces as one."""
    keys = headers = None
    if any(piece.keys is not None for piece in pieces):
        keys = [key for piece in pieces for key in (piece.keys or [None] * len(piece))]
    if any(piece.headers is not None for piece in pieces):
        headers = [header for piece in pieces for header in (piece.headers or [[] for _ in range(len(piece))])]
    first = pieces[0].timestamps
    is_same = isinstance(first, int) and all(piece.timestamps == first for piece in pieces)
    alike = len({(piece.before, piece.after) for piece in pieces}) == 1
    return RecordColumns(
        values=[value for piece in pieces for value in (piece.values if alike else piece.whole_values())],
        keys=keys,
        headers=headers,
        timestamps=first if is_same else [stamp for piece in pieces for stamp in piece.timestamp_list()],
        before=pieces[0].before if alike else b"",
        after=pieces[0].after if alike else b"",
    )


def estimate_bytes(columns: RecordColumns) -> int:
    """Return about how many bytes a batch of these records takes, uncompressed; rather too many than too few."""
    size = len(columns) * (RECORD_OVERHEAD_BYTES + len(columns.before) + len(columns.after))
    size += sum(columns.value_lengths())
    if columns.keys is not None:
        size += _bytes_in(columns.keys)
    if columns.headers is not None:
        for headers in columns.headers:
            for name, value in headers:
                size += 3 * len(name) + len(value or b"") + 4
    return size


def runs(columns: RecordColumns, size_bytes: int, size_bytes_max: int) -> Iterator[tuple[RecordColumns, int]]:
    """Yield (columns, estimated bytes) in runs of at most `size_bytes_max`, but of at least one record.

    `size_bytes` is the estimate of the whole.
    """
    count = len(columns)
    if size_bytes <= size_bytes_max or count == 1:
        yield columns, size_bytes
        return
    step = max(int(count * size_bytes_max / size_bytes * 0.98), 1)
    for start in range(0, count, step):
        piece = columns.slice(start, min(start + step, count))
        piece_bytes = estimate_bytes(piece)
        if piece_bytes <= size_bytes_max or len(piece) == 1:
            yield piece, piece_bytes
        else:  # records of very different sizes: measure each
            for part in split(piece, size_bytes_max):
                yield part, estimate_bytes(part)


def _bytes_in(column: list[bytes | None]) -> int:
    try:
        return sum(map(len, column))  # type: ignore[arg-type]  # None is rare, and found out by the TypeError
    except TypeError:
        return sum(len(value) for value in column if value is not None)
