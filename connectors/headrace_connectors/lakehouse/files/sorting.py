"""Sorts the rows of a file. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connectors.lakehouse.files.layout import SortField


def sorted_slices(rows: pa.Table, fields: Sequence[SortField], slice_rows: int) -> Iterator[pa.Table]:
    """Yield the sorted rows, at most `slice_rows` at a time, because each slice is a copy."""
    keys = [
        (
            field.column,
            "descending" if field.descending else "ascending",
            "at_start" if field.nulls_first else "at_end",
        )
        for field in fields
    ]
    order = pc.sort_indices(rows, options=pc.SortOptions(keys))
    for start in range(0, len(order), slice_rows):
        yield rows.take(order.slice(start, slice_rows))
