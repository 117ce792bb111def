"""Single message transforms: they convert one record to one record or drop it, or convert a whole batch at once.

Authors implement `apply`. Built-in transforms also override `apply_batch` for speed; both must have the same results.
The platform passes each record through each transform once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from headrace.api.errors import RecordErrors
from headrace.api.plugin import C, Plugin
from headrace.data.batch import Batch, from_records
from headrace.data.records import ConnectRecord


class Transformation(Plugin[C]):
    """The base class of all transforms."""

    abstract = True

    stateless: ClassVar[bool] = False
    """If true, the platform may call `apply_batch` again for the same records after an error."""

    changes_topics: ClassVar[bool] = True
    """Whether the transform may change the topic of a record. Set it to False if it never does.

    A sink may then store the position of a topic in the topic's table.
    """

    alias: str = ""
    """The name of the transform in the key `transforms`, for error messages; set after `configure`."""

    def configure(self, config: C) -> None:
        """Prepare the transform. Raises ConfigError."""

    def apply(self, record: Any) -> ConnectRecord | None:
        """Return a new record, or the same record unchanged, or None to drop the record. Raises DataError.

        If it raises RetriableError, the platform retries this record before it continues with the next one.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define apply")

    def apply_batch(self, batch: Any) -> Batch | Sequence[Batch] | None:
        """Return the transformed batches, without dropped records, or None if all are dropped. Do not modify the input.

        Override it only for speed. Raises RecordErrors with the error of *every* record that fails, and with the
        results of the other records (which a `stateless` class may omit). Any other exception fails the task, unless
        the class is `stateless`: the platform then calls `apply_batch` with fewer records.
        """
        results = []
        errors: dict[int, Exception] = {}
        for index, record in enumerate(batch.to_records()):
            try:
                result = self.apply(record)
            except Exception as error:  # noqa: BLE001 - any exception of a plug-in concerns only this record
                errors[index] = error
            else:
                if result is not None:
                    results.append(result)
        if errors:
            raise RecordErrors(errors, from_records(results))
        return from_records(results)

    def close(self) -> None:
        """Release the resources that `configure` acquired."""
