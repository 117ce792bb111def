"""Filter: drop every record to which the transform is applied. A predicate selects these records."""

from __future__ import annotations

from typing import Any

from headrace.api.transform import Transformation


class Filter(Transformation):
    """Drops all records to which it is applied."""

    java_names = ("org.apache.kafka.connect.transforms.Filter",)
    stateless = True
    changes_topics = False

    def apply(self, record: Any) -> None:
        """Drop the record."""

    def apply_batch(self, batch: Any) -> None:
        """Drop the batch."""
