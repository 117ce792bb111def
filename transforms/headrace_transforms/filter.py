"""Filter: drop every record. A predicate selects the records that the transform is applied to."""

from __future__ import annotations

from typing import Any

from headrace.api.transform import Transformation


class Filter(Transformation):
    """Drops all records that it is applied to."""

    java_names = ("org.apache.kafka.connect.transforms.Filter",)
    stateless = True

    def apply(self, record: Any) -> None:
        """Drop the record."""

    def apply_batch(self, batch: Any) -> None:
        """Drop the batch."""
