"""Loads the coordinator's groups when this broker becomes leader of a `__consumer_offsets` partition."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from headrace_broker.server.replicas.partitions import PartitionTable


class GroupLoading(Protocol):
    """The methods of the group coordinator that load and unload the groups of a partition."""

    async def load(self, partition: int) -> None:
        """Load the partition's groups from its log."""

    def unload(self, partition: int) -> None:
        """Discard the partition's groups; this broker no longer coordinates them."""


class GroupPartitionLoader:
    """Tracks the partitions whose groups are loaded. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: PartitionTable,
        groups: GroupLoading,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._groups = groups
        self._start_task = start_task
        self._loaded: dict[int, int] = {}  # by partition: the leader epoch in which its groups were loaded

    def on_leaders_change(self) -> None:
        """Unload the partitions that this broker no longer leads. Start loading the partitions that it leads now.

        If a partition that is loaded has a new leader epoch, unload it and load it again, because another coordinator
        may have written to it in the meantime.
        """
        for index, epoch in list(self._loaded.items()):
            if not self._is_leader(index, epoch):
                self.on_partition_removed(index)
        self.start_loading()

    def start_loading(self) -> None:
        """Start a task that loads the partitions that this broker leads and that are not loaded."""
        self._start_task(self.load())

    async def load(self) -> None:
        """Load the partitions that this broker leads and that are not loaded."""
        held = self._partitions.by_name.get(GROUP_METADATA_TOPIC, {})
        for index, epoch in [(index, partition.leader_epoch) for index, partition in held.items()]:
            if self._is_leader(index, epoch) and index not in self._loaded:
                self._loaded[index] = epoch
                await self._groups.load(index)

    def on_partition_removed(self, index: int) -> None:
        """Unload the `__consumer_offsets` partition `index`, if it is loaded."""
        if self._loaded.pop(index, None) is not None:
            self._groups.unload(index)

    def _is_leader(self, index: int, epoch: int) -> bool:
        partition = self._partitions.get(GROUP_METADATA_TOPIC, index)
        return partition is not None and partition.leader == self._node_id and partition.leader_epoch == epoch
