"""The committed cluster image of this node, and the listeners that are notified of each change.

Every node has an image, regardless of its roles. The node builds the image from the metadata log up to the high
watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_broker.metadata.delta import MetadataDelta, diff_images
from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.protocol.metadata_records import MetadataRecord

ImageListener = Callable[[MetadataDelta, MetadataImage], None]


class CommittedImage:
    """Holds the current image and notifies the listeners of each change. All methods run on the event loop."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._listeners: list[ImageListener] = []
        self._removed_topics: dict[bytes, TopicImage] | None = {}

    def subscribe(self, listener: ImageListener) -> None:
        """Call `listener` with each committed change, in order."""
        self._listeners.append(listener)

    def apply(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> None:
        """Apply one committed batch of records. The last record is at `last_offset`, in leader epoch `epoch`."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self._publish(delta, delta.image(last_offset, epoch))

    def replace(self, image: MetadataImage) -> None:
        """Replace the current image with `image`, which was read from a snapshot."""
        self._publish(diff_images(self.image, image), image)

    def pop_removed_topics(self) -> dict[bytes, TopicImage]:
        """Return the topics that were deleted since the process started, and clear the list.

        A starting broker deletes the logs of these topics after it has opened its logs.
        """
        removed, self._removed_topics = self._removed_topics or {}, None
        return removed

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        if self._removed_topics is not None:
            self._removed_topics.update(delta.removed_topics)
        for listener in self._listeners:
            listener(delta, image)
