"""RecordColumns: records as a struct of lists, the one shape they have between builder, reader and Connect."""

from __future__ import annotations

from dataclasses import dataclass

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True, eq=False)
class RecordColumns:
    """Records of one partition, column by column; all lists are equally long.

    `keys` or `headers` None = no record has any. `timestamps` as an int = the same for all, None = not given yet.
    `offsets` None = not in a log yet. `next_offset` = where a reader goes on: past control batches and batches whose
    records compaction removed, too.
    """

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    timestamps: list[int] | int | None = None
    offsets: list[int] | range | None = None
    timestamp_type: int = 0
    next_offset: int | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Return the records from `start` (inclusive) to `stop` (exclusive)."""
        timestamps = self.timestamps
        return RecordColumns(
            values=self.values[start:stop],
            keys=None if self.keys is None else self.keys[start:stop],
            headers=None if self.headers is None else self.headers[start:stop],
            timestamps=timestamps[start:stop] if isinstance(timestamps, list) else timestamps,
            offsets=None if self.offsets is None else self.offsets[start:stop],
            timestamp_type=self.timestamp_type,
            next_offset=self.next_offset if stop >= len(self.values) else None,
        )

    def timestamp_list(self) -> list[int]:
        """Return one timestamp per record, -1 where none is given."""
        timestamps = self.timestamps
        if isinstance(timestamps, list):
            return timestamps
        return [-1 if timestamps is None else timestamps] * len(self.values)
