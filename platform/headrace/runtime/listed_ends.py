"""The ends of partitions that a task does not fetch at the moment. The partitions' leaders are asked for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Set

from headrace.runtime.sink_offsets import TopicPartition
from headrace_broker.client.errors import ClientError
from headrace_broker.client.offsets import LATEST, ListedOffset

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""The minimum time between two requests, so that many paused tasks do not load the brokers."""

ListOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, ListedOffset]]]


class ListedEnds:
    """The last ends that the leaders returned."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}
        self._next_s = 0.0

    async def get(self, partitions: Set[TopicPartition], list_offsets: ListOffsets) -> dict[TopicPartition, int]:
        """Return the ends of these partitions. They are at most a few seconds old, unless a leader does not respond."""
        if partitions and time.monotonic() >= self._next_s:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    listed = await list_offsets(dict.fromkeys(partitions, LATEST))
            except (ClientError, TimeoutError) as error:
                log.debug("failed to list the end offsets of %d partitions: %s", len(partitions), error)
            else:
                self._ends = {partition: found.offset for partition, found in listed.items()}
            self._next_s = time.monotonic() + INTERVAL_S
        return {partition: end for partition, end in self._ends.items() if partition in partitions}
