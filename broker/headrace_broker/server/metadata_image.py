"""The committed cluster image of this node, and those who follow it.

Every node has one, whatever its roles: it is what the metadata log says up to its high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_broker.metadata.delta import MetadataDelta, difference
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.metadata_records import MetadataRecord

Listener = Callable[[MetadataDelta, MetadataImage], None]


class CommittedImage:
    """Owner of the image; lives on the event loop."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each committed change, in order."""
        self._listeners.append(listener)

    def apply(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
        """One batch was committed."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self._tell(delta, delta.image(last_offset, epoch))

    def replace(self, image: MetadataImage) -> None:
        """A snapshot took the place of everything before it."""
        self._tell(difference(self.image, image), image)

    def _tell(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        for listener in self._listeners:
            listener(delta, image)
