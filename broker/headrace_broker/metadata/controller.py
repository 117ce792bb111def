"""The controller: decisions made on the newest state, whether or not it is committed yet.

`decide` runs a decision on the image that includes everything appended so far and moves that image forward; the
caller appends the records and answers when they are committed.  When leadership is lost, `revert` goes back to what
was committed.  Law: the image reached by deciding equals the one that replays the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace_broker.metadata.delta import replayed
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome

Response = TypeVar("Response")


class Controller:
    """Owner of the newest image; one caller at a time (the event loop)."""

    __slots__ = ("_epoch", "image")

    def __init__(self, image: MetadataImage, epoch: int) -> None:
        self.image = image
        self._epoch = epoch

    def decide(self, decision: Callable[[MetadataImage], Outcome[Response]], next_offset: int) -> Outcome[Response]:
        """Run `decision`; its records, to be appended from `next_offset` on, are already part of `image`."""
        outcome = decision(self.image)
        if outcome.records:
            last_offset = next_offset + len(outcome.records) - 1
            self.image = replayed(self.image, outcome.records, last_offset, self._epoch)
        return outcome

    def revert(self, committed: MetadataImage) -> None:
        """Forget every decision that was not committed."""
        self.image = committed
