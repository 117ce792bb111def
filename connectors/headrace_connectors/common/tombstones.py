"""Recognizes batches of tombstones, which are records with a null value."""

from __future__ import annotations

from headrace.data.batch import SinkBatch


def starts_with_tombstone(batch: SinkBatch) -> bool:
    """Whether the first value of a batch is null. Batches in columnar form have no null values."""
    return batch.compact is None and batch.values[0] is None
