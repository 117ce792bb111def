"""HasHeaderKey: true for records that have a header with the configured name."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, key
from headrace.api.predicate import Predicate
from headrace.data.batch import Batch


class HasHeaderKeyConfig(Config):
    """Configuration of HasHeaderKey."""

    name: str = key("name", non_empty=True, doc="The header's name.")


class HasHeaderKey(Predicate[HasHeaderKeyConfig]):
    """True for records that have a header with the configured name."""

    java_names = ("org.apache.kafka.connect.transforms.predicates.HasHeaderKey",)
    stateless = True

    def configure(self, config: HasHeaderKeyConfig) -> None:
        """Store the name."""
        self._name = config.name

    def test(self, record: Any) -> bool:
        """Whether the record has a header with the configured name."""
        return any(header.key == self._name for header in record.headers)

    def test_batch(self, batch: Batch) -> list[bool]:
        """Return the result of `test` for every record."""
        if batch.headers is None:
            return [False] * len(batch)
        return [any(header.key == self._name for header in headers) for headers in batch.headers]
