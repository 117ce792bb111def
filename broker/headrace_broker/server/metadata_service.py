"""The controller at work: decisions are appended to the metadata log, and the image moves when they are committed.

`image` is the committed image that handlers read.  `submit` runs a decision and answers after the commit; listeners
see every committed change, in order, before the answer goes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace_broker.metadata.controller import Controller
from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.server.metadata_log import MetadataLog

Response = TypeVar("Response")
Decision = Callable[[MetadataImage], Outcome[Response]]
Listener = Callable[[MetadataDelta, MetadataImage], None]


class MetadataService:
    """Owner of the committed image and of the controller; lives on the event loop.

    `deleted_topic_ids` are those of topics that were deleted before this start.
    """

    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.image, self.deleted_topic_ids = _replay(log)
        log.lead(self.image.epoch)
        self._controller = Controller(self.image, log.epoch)
        self._listeners: list[Listener] = []
        log.on_commit = self._committed

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each committed change."""
        self._listeners.append(listener)

    async def submit(self, decision: Decision[Response]) -> Response:
        """Decide on the newest state, append, and answer when committed."""
        before = self._controller.image
        outcome = self._decide(decision)
        if outcome.records:
            try:
                committed = self.log.append(outcome.records)
            except Exception:
                self._controller.revert(before)
                raise
            try:
                await asyncio.shield(committed)
            except ApiError:
                self._controller.revert(self.image)
                raise
        return outcome.response

    def submit_now(self, decision: Decision[Response]) -> Response:
        """The same at start, without an event loop's help."""
        outcome = self._decide(decision)
        if outcome.records:
            self.log.append_now(outcome.records)
        return outcome.response

    def _decide(self, decision: Decision[Response]) -> Outcome[Response]:
        return self._controller.decide(decision, self.log.next_offset)

    def _committed(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.image(last_offset, epoch)
        for listener in self._listeners:
            listener(delta, self.image)


def _replay(log: MetadataLog) -> tuple[MetadataImage, frozenset[bytes]]:
    """(image of everything on disk, built with one copy of each table; ids of the topics that went)."""
    delta = MetadataDelta(MetadataImage())
    offset, epoch = -1, 0
    for records, last_offset, of_epoch in log.replay():
        for record in records:
            delta.replay(record)
        offset, epoch = last_offset, of_epoch
    return delta.image(offset, max(epoch, 0)), frozenset(delta.removed_topics)
