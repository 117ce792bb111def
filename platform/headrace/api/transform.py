"""Single message transforms: from one record to one record or none, or list-wise over a whole batch.

An author writes `apply`. Built-in transforms override `apply_batch` as well; both must agree, record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.errors import BatchError
from headrace.api.plugin import Plugin
from headrace.data.batch import Batch, from_records


class Transformation(Plugin):
    """The base of all transforms."""

    abstract = True

    def configure(self, config: Any) -> None:
        """Take the settings; `config` is an instance of `config_model`. Raises ConfigError."""

    def apply(self, record: Any) -> Any:
        """The record to go on with (a new one, or the same unchanged), or None to drop it. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define apply")

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """The batches to go on with; None or fewer records when some are dropped. The input stays as it was.

        Raises BatchError naming *every* record that cannot be handled: without these the same call succeeds.
        """
        results = []
        errors: dict[int, Exception] = {}
        for index, record in enumerate(batch.to_records()):
            try:
                result = self.apply(record)
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
            else:
                if result is not None:
                    results.append(result)
        if errors:
            raise BatchError(errors)
        return from_records(results)

    def close(self) -> None:
        """Release what `configure` took."""
