"""`RecordColumns`, the column format in which the batch builder, the batch reader and Connect exchange records."""

from __future__ import annotations

from dataclasses import dataclass, field

RecordHeaders = list[tuple[str, bytes | None]]


@dataclass(slots=True, eq=False)
class RecordColumns:
    """Records of one partition, stored by column. All lists have the same length.

    - `keys` is None if no record has a key.
    - `headers` is None if no record has headers. Records with equal headers may share one list of headers, so never
      change such a list in place.
    - `timestamps` is an int if all records have the same timestamp. It is None if the timestamps are not set yet.
    - `offsets` is None for records that are not in a log yet.
    - `next_offset` is the offset from which a reader continues. It is the offset after the last batch that was read.
      This batch may be a control batch, and compaction may have removed all its records.
    - `before` and `after` are a common prefix and a common suffix of the values to produce. `values` does not contain
      them. When a batch is built, they are added to each value that is not null.
    """

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[RecordHeaders] | None = None
    timestamps: list[int] | int | None = None
    offsets: list[int] | range | None = None
    timestamp_type: int = 0
    next_offset: int | None = None
    before: bytes = b""
    after: bytes = b""
    _lengths: list[int] | None = field(default=None, init=False, repr=False)
    _has_nulls: bool = field(default=False, init=False, repr=False)

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
            before=self.before,
            after=self.after,
        )

    def whole_values(self) -> list[bytes | None]:
        """Return each value with the bytes `before` in front of it and the bytes `after` behind it.

        Null values stay None.
        """
        before, after = self.before, self.after
        if not before and not after:
            return self.values
        return [None if value is None else before + value + after for value in self.values]

    def value_lengths(self) -> list[int]:
        """Return the length of each value, or 0 for a null value. The result is cached.

        The lengths do not include the bytes of `before` and `after`.
        """
        if self._lengths is None:
            try:
                self._lengths = list(map(len, self.values))  # type: ignore[arg-type]  # len(None) raises TypeError
            except TypeError:
                self._has_nulls = True
                self._lengths = [0 if value is None else len(value) for value in self.values]
        return self._lengths

    def has_null_values(self) -> bool:
        """Return whether any value is null."""
        self.value_lengths()
        return self._has_nulls

    def shared_headers(self) -> RecordHeaders | None:
        """Return the common headers if all records have equal headers, else None."""
        headers = self.headers
        if not headers or headers[0] != headers[-1] or headers.count(headers[0]) != len(headers):
            return None
        return headers[0]

    def timestamp_list(self) -> list[int]:
        """Return one timestamp per record, or -1 for each record if the timestamps are not set."""
        timestamps = self.timestamps
        if isinstance(timestamps, list):
            return timestamps
        return [-1 if timestamps is None else timestamps] * len(self.values)
