"""Predicates: they decide which records a transform is applied to."""

from __future__ import annotations

from typing import Any

from headrace.api.errors import BatchError
from headrace.api.plugin import Plugin
from headrace.data.batch import Batch


class Predicate(Plugin):
    """The base of all predicates."""

    abstract = True

    def configure(self, config: Any) -> None:
        """Take the settings; `config` is an instance of `config_model`. Raises ConfigError."""

    def test(self, record: Any) -> bool:
        """Whether the transform applies to the record."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define test")

    def test_batch(self, batch: Batch) -> list[bool]:
        """`test` for every record. Raises BatchError naming every record that cannot be judged."""
        outcomes = []
        errors: dict[int, Exception] = {}
        for index, record in enumerate(batch.to_records()):
            try:
                outcomes.append(bool(self.test(record)))
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
        if errors:
            raise BatchError(errors)
        return outcomes

    def close(self) -> None:
        """Release what `configure` took."""
