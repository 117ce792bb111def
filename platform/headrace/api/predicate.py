"""Predicates decide to which records a transform is applied."""

from __future__ import annotations

from typing import Any

from headrace.api.errors import BatchError
from headrace.api.plugin import Plugin
from headrace.data.batch import Batch


class Predicate(Plugin):
    """The base class of all predicates."""

    abstract = True

    def configure(self, config: Any) -> None:
        """Apply the configuration; `config` is an instance of `config_model`. Raises ConfigError."""

    def test(self, record: Any) -> bool:
        """Return whether the transform is applied to the record."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define test")

    def test_batch(self, batch: Batch) -> list[bool]:
        """Call `test` for every record. Raises BatchError that names every record for which `test` raises an error."""
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
        """Release the resources that `configure` acquired."""
