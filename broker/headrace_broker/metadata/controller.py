"""The controller's state: the newest metadata image, which may contain uncommitted records.

`run` applies an operation to the image that includes every appended record, and adds the operation's own records to
that image. The caller appends the records and responds when they are committed. When the node is no longer the active
controller, `revert` restores the committed image. Invariant: the image equals the result of replaying the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import MetadataImage

Response = TypeVar("Response")


class Controller:
    """Holds the newest metadata image. This class is not thread-safe: only the event loop calls it."""

    __slots__ = ("_epoch", "image")

    def __init__(self, image: MetadataImage, epoch: int) -> None:
        self.image = image
        self._epoch = epoch

    def run(
        self, operation: Callable[[MetadataImage], ControllerResult[Response]], next_offset: int
    ) -> ControllerResult[Response]:
        """Run an operation and replay its records on the image. The caller appends the records at `next_offset`."""
        result = operation(self.image)
        if result.records:
            last_offset = next_offset + len(result.records) - 1
            self.image = apply_records(self.image, result.records, last_offset, self._epoch)
        return result

    def revert(self, committed: MetadataImage) -> None:
        """Restore the image `committed`, and thus discard every operation whose records were not committed."""
        self.image = committed
