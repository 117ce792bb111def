"""Gives the group coordinator access to the partitions of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable

from headrace_broker.log.log import AppendInfo
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from headrace_broker.records.batch import Buffer
from headrace_broker.server.replicas.partitions import Partition, PartitionTable

Append = Callable[[Partition, memoryview, AppendOrigin], AppendInfo]


class OffsetsTopic:
    """Implements `coordinator.runner.InternalTopic` with the logs of node `node_id`. No method blocks."""

    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], partitions: PartitionTable, append: Append
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._partitions = partitions
        self._append = append

    def partition_count(self) -> int:
        """Return the number of partitions, or 0 while the topic does not exist."""
        topic = self._image().topics.get(GROUP_METADATA_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def topic_exists(self, topic: str) -> bool:
        """Return whether the image has a topic of this name."""
        return topic in self._image().topics

    def append(self, partition: int, batch: bytearray) -> int:
        """Append one batch as leader and return its last offset. Raises ApiError if nothing was written."""
        led = self._led_or_raise(partition)
        return self._append(led, memoryview(batch), AppendOrigin.COORDINATOR).last_offset

    def high_watermark(self, partition: int) -> int:
        """Return the partition's high watermark, or -1 if this node is not the leader."""
        led = self._led(partition)
        return -1 if led is None else led.log.high_watermark

    def read(self, partition: int, offset: int, size_bytes_max: int) -> Buffer | None:
        """Read whole batches from `offset` on, or from the log start offset on if that is larger.

        Return None at the end of the log.
        """
        log = self._led_or_raise(partition).log
        start = max(offset, log.log_start_offset)
        # Read up to the log end offset, not the high watermark. A leader's log is never truncated, so its uncommitted
        # records will be committed. The coordinator sends no response before they are committed.
        if start >= log.log_end_offset:
            return None
        found = log.read(start, size_bytes_max, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        if not found.size_bytes:
            return None
        return found.buffers[0] if len(found.buffers) == 1 else b"".join(found.buffers)

    def _led(self, index: int) -> Partition | None:
        partition = self._partitions.get(GROUP_METADATA_TOPIC, index)
        return partition if partition is not None and partition.leader == self._node_id else None

    def _led_or_raise(self, index: int) -> Partition:
        partition = self._led(index)
        if partition is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return partition
