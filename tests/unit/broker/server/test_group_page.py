"""Tests of the committed offsets and the lag of consumer groups on the metrics page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headrace_broker.server.metrics.group_page import add_group_offsets
from headrace_broker.server.metrics.page import MetricsPage

HIGH_WATERMARK = 100


def broker_with(*offsets: tuple[str, str, int, int]) -> Any:
    """Return a broker that coordinates groups with these committed offsets and leads every partition of the topic t."""
    partition = SimpleNamespace(log=SimpleNamespace(high_watermark=HIGH_WATERMARK))
    return SimpleNamespace(
        node_id=1,
        image=SimpleNamespace(topics={}),
        groups=SimpleNamespace(committed_offsets=lambda: iter(offsets)),
        partitions=SimpleNamespace(get=lambda topic, index: partition if topic == "t" else None),
    )


def samples(page: MetricsPage) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for family in text_string_to_metric_families(page.text().decode()):
        for sample in family.samples:
            yield family.name, tuple(sample.labels.values()), sample.value


def test_page_has_committed_offset_and_lag_of_each_partition_of_a_group() -> None:
    page = MetricsPage()
    asyncio.run(add_group_offsets(page, broker_with(("g", "t", 0, 30), ("g", "t", 1, 100), ("h", "t", 0, 99))))
    assert set(samples(page)) == {
        ("kafka_consumergroup_current_offset", ("g", "t", "0"), 30),
        ("kafka_consumergroup_current_offset", ("g", "t", "1"), 100),
        ("kafka_consumergroup_current_offset", ("h", "t", "0"), 99),
        ("kafka_consumergroup_lag", ("g", "t", "0"), 70),
        ("kafka_consumergroup_lag", ("g", "t", "1"), 0),
        ("kafka_consumergroup_lag", ("h", "t", "0"), 1),
    }


def test_lag_is_zero_if_the_local_high_watermark_is_below_the_committed_offset() -> None:
    page = MetricsPage()
    asyncio.run(add_group_offsets(page, broker_with(("g", "t", 0, HIGH_WATERMARK + 1))))
    assert ("kafka_consumergroup_lag", ("g", "t", "0"), 0) in set(samples(page))


def test_lag_is_missing_if_the_high_watermark_is_unknown() -> None:
    page = MetricsPage()
    asyncio.run(add_group_offsets(page, broker_with(("g", "deleted", 0, 5))))
    assert list(samples(page)) == [("kafka_consumergroup_current_offset", ("g", "deleted", "0"), 5)]


def test_event_loop_does_other_work_while_the_offsets_of_many_groups_are_added() -> None:
    async def count_steps() -> int:
        page = MetricsPage()
        offsets = [(f"g{group}", "t", index, 0) for group in range(1000) for index in range(10)]
        task = asyncio.create_task(add_group_offsets(page, broker_with(*offsets)))
        steps = 0
        while not task.done():
            await asyncio.sleep(0)
            steps += 1
        assert len(list(samples(page))) == 20_000
        return steps

    assert asyncio.run(count_steps()) >= 200
