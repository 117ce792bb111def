"""Buffers rows as Arrow record batches until they become a row group. This module does no I/O."""

from __future__ import annotations

import pyarrow as pa

_SMALL_ROWS = 1024
_SMALL_BATCHES = 64
_BATCH_OVERHEAD = 512
_COLUMN_OVERHEAD = 256
"""Estimates of the memory that objects and the alignment of buffers need for each batch, and each column of it."""


class RowBuffer:
    """Rows in the order in which they were appended. `count` is their number, and `size` an estimate of their bytes.

    Small batches are combined: thousands of batches with one row would need more memory for objects than for values,
    and would be slow to write.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._batches: list[pa.RecordBatch] = []
        self._small: list[pa.RecordBatch] = []
        """The last batches, if they are small."""

    def append(self, rows: pa.RecordBatch) -> None:
        """Append rows with the same columns as before."""
        self.count += rows.num_rows
        self.size += _memory_bytes(rows)
        self._small.append(rows)
        if len(self._small) >= _SMALL_BATCHES or rows.num_rows >= _SMALL_ROWS:
            self._combine()

    def to_table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_batches(self._batches + self._small, schema)

    def _combine(self) -> None:
        small = [rows for rows in self._small if rows.num_rows < _SMALL_ROWS]
        if len(small) > 1:
            combined = pa.concat_batches(small)
            self.size += _memory_bytes(combined) - sum(map(_memory_bytes, small))
            self._batches.append(combined)
        else:
            self._batches += small
        self._batches += [rows for rows in self._small if rows.num_rows >= _SMALL_ROWS]
        self._small = []


def _memory_bytes(rows: pa.RecordBatch) -> int:
    return int(rows.nbytes) + _BATCH_OVERHEAD + _COLUMN_OVERHEAD * int(rows.num_columns)
