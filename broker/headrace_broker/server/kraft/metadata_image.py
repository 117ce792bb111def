"""The committed cluster image of this node, and those who follow it.

Every node has one, whatever its roles: it is what the metadata log says up to its high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_broker.metadata.delta import MetadataDelta, difference
from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.protocol.metadata_records import MetadataRecord

Listener = Callable[[MetadataDelta, MetadataImage], None]


class CommittedImage:
    """Owner of the image; lives on the event loop."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._listeners: list[Listener] = []
        self._removed_topics: dict[bytes, TopicImage] | None = {}

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

    def take_removed_topics(self) -> dict[bytes, TopicImage]:
        """The topics that went since the start: a broker that opens its logs then finishes their deletion."""
        removed, self._removed_topics = self._removed_topics or {}, None
        return removed

    def _tell(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        if self._removed_topics is not None:
            self._removed_topics.update(delta.removed_topics)
        for listener in self._listeners:
            listener(delta, image)
