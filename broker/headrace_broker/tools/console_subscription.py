"""Selects the partitions that kafka-console-consumer reads: one partition, a group's assignment, or whole topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from headrace_broker.client.cluster_view import ClusterView
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.errors import BrokerError
from headrace_broker.tools.command_line import wait_for_topic
from headrace_broker.tools.tool_error import ToolError
from headrace_broker.tools.topic_filter import TopicFilter, topic_filter

_FOREVER_MS = 24 * 3600 * 1000
_DISCOVERY_INTERVAL_MS = 1_000


async def start_reading(consumer: Consumer, options: argparse.Namespace, group_id: str | None) -> None:
    """Assign or subscribe the consumer according to the options. Raises ClientError, ToolError."""
    if options.partition is not None:
        await _assign_partition(consumer, options)
    elif group_id is None:
        await _TopicAssignment(consumer, options).start()
    elif options.topic is not None:
        await consumer.subscribe([options.topic], discovery_interval_ms=_DISCOVERY_INTERVAL_MS)
    else:
        await consumer.subscribe(pattern=topic_filter(options.include), discovery_interval_ms=_DISCOVERY_INTERVAL_MS)


async def _assign_partition(consumer: Consumer, options: argparse.Namespace) -> None:
    topic = await wait_for_topic(consumer.cluster, options.topic, options.timeout_ms or _FOREVER_MS)
    if not 0 <= options.partition < len(topic.partitions):
        raise ToolError(
            f"topic {topic.name} has no partition {options.partition}, its partition count is {len(topic.partitions)}"
        )
    partition = (topic.name, options.partition)
    consumer.assign([partition])
    offset = (options.offset or ("earliest" if options.from_beginning else "latest")).lower()
    if offset == "earliest":
        await consumer.seek_to_beginning([partition])
    elif offset == "latest":
        await consumer.seek_to_end([partition])
    else:
        consumer.seek(partition, int(offset))


class _TopicAssignment:
    """Assigns all partitions of the selected topics, including partitions that are created later."""

    def __init__(self, consumer: Consumer, options: argparse.Namespace) -> None:
        self._consumer = consumer
        self._topic: str | None = options.topic
        matches = topic_filter(options.include) if self._topic is None else None
        self._is_selected: TopicFilter = matches or (lambda name: name == self._topic)
        self._assigned: set[tuple[str, int]] = set()

    async def start(self) -> None:
        """Assign the existing partitions. Raises BrokerError if the topic has an error that is not retriable."""
        cluster = self._consumer.cluster
        cluster.refresh_at_least_every(_DISCOVERY_INTERVAL_MS)
        if self._topic is not None:
            cluster.track([self._topic])
        else:
            cluster.track_all(on=True)
        view = await cluster.wait_for_refresh()
        self._assigned.update(self._selected_partitions(view))
        self._consumer.assign(sorted(self._assigned))
        self._check_topic_error(view.errors)
        cluster.listeners.append(self._on_metadata)

    def _check_topic_error(self, errors: Mapping[str, int]) -> None:
        if self._topic is not None and self._topic in errors:
            error = BrokerError(errors[self._topic], f"topic {self._topic}")
            if not error.retriable:
                raise error
            print(f"WARN {error} Waiting for the topic.", file=sys.stderr)

    def _selected_partitions(self, view: ClusterView) -> list[tuple[str, int]]:
        return [
            (name, part.partition)
            for name, topic in view.topics.items()
            if self._is_selected(name)
            for part in topic.partitions
        ]

    def _on_metadata(self, view: ClusterView) -> None:
        new = [item for item in self._selected_partitions(view) if item not in self._assigned]
        if not new:
            return
        self._assigned.update(new)
        self._consumer.assign(sorted(self._assigned))
        for item in new:
            self._consumer.seek(item, 0)
