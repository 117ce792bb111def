"""RecordIsTombstone: true for records whose value is null."""

from __future__ import annotations

from typing import Any

from headrace.api.predicate import Predicate
from headrace.data.batch import Batch


class RecordIsTombstone(Predicate):
    """True for records whose value is null."""

    java_names = ("org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",)
    stateless = True

    def test(self, record: Any) -> bool:
        """Whether the record's value is null."""
        return record.value is None

    def test_batch(self, batch: Batch) -> list[bool]:
        """Return the result of `test` for every record."""
        if batch.compact is not None:
            return [False] * len(batch)
        return [value is None for value in batch.values]
