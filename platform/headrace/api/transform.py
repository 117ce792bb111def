"""Single message transforms: they convert one record to one record or drop it, or convert a whole batch at once.

Authors implement `apply`. Built-in transforms also override `apply_batch` for speed; both must have the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.errors import BatchError
from headrace.api.plugin import Plugin
from headrace.data.batch import Batch, from_records


class Transformation(Plugin):
    """The base class of all transforms."""

    abstract = True

    def configure(self, config: Any) -> None:
        """Apply the configuration; `config` is an instance of `config_model`. Raises ConfigError."""

    def apply(self, record: Any) -> Any:
        """Return the transformed record (a new one, or the same one unchanged), None to drop it. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define apply")

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """Return the transformed batches, without dropped records; None if all are dropped. Do not modify the input.

        Raises BatchError naming *every* record that fails, so that the same call succeeds without these records.
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
        """Release the resources that `configure` acquired."""
