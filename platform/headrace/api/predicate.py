"""Predicates decide to which records a transform is applied."""

from __future__ import annotations

from typing import ClassVar

from headrace.api.errors import RecordErrors
from headrace.api.plugin import C, Plugin
from headrace.data.batch import Batch
from headrace.data.records import ConnectRecord


class Predicate(Plugin[C]):
    """The base class of all predicates."""

    abstract = True

    stateless: ClassVar[bool] = False
    """If true, the platform may call `test_batch` again for the same records after an error."""

    def configure(self, config: C) -> None:
        """Prepare the predicate. Raises ConfigError."""

    def test(self, record: ConnectRecord) -> bool:
        """Return whether the transform is applied to the record."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define test")

    def test_batch(self, batch: Batch) -> list[bool]:
        """Return the result of `test` for every record; override it only for speed.

        Raises RecordErrors with the errors and with the results of the other records. Any other exception fails the
        task, unless the class is `stateless`: the platform then calls `test_batch` with fewer records.
        """
        results = []
        errors: dict[int, Exception] = {}
        for index, record in enumerate(batch.to_records()):
            try:
                results.append(bool(self.test(record)))
            except Exception as error:  # noqa: BLE001 - any exception of a plug-in concerns only this record
                errors[index] = error
        if errors:
            raise RecordErrors(errors, results)
        return results

    def close(self) -> None:
        """Release the resources that `configure` acquired."""
