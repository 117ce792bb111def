"""The committed offsets and the lag of the groups that this broker coordinates, with the names of kafka_exporter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace_broker.server.metrics.end_offsets import end_offsets
from headrace_broker.server.metrics.page import MetricsPage

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker


_OFFSETS_AT_ONCE = 500


async def add_group_offsets(page: MetricsPage, broker: Broker) -> None:
    """Add the committed offset of each group and partition, and its distance to the high watermark."""
    committed: list[tuple[str, str, int, int]] = []
    for item in broker.groups.committed_offsets():
        committed.append(item)
        if len(committed) % _OFFSETS_AT_ONCE == 0:
            await asyncio.sleep(0)
    ends = await end_offsets(broker, {(topic, index) for _, topic, index, _ in committed})

    def labels(group: str, topic: str, index: int) -> dict[str, object]:
        return {"consumergroup": group, "topic": topic, "partition": index}

    name = "kafka_consumergroup_current_offset"
    page.family(name, "gauge", "Committed offset of a group that this broker coordinates")
    await page.samples(name, ((offset, labels(group, topic, index)) for group, topic, index, offset in committed))
    name = "kafka_consumergroup_lag"
    page.family(name, "gauge", "Records between the committed offset and the high watermark")
    await page.samples(
        name,
        (
            (max(0, ends[topic, index] - offset), labels(group, topic, index))
            for group, topic, index, offset in committed
            if (topic, index) in ends
        ),
    )
