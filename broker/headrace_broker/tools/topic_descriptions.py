"""Formats the output of kafka-topics --describe, and selects the topics and partitions to show.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.client.admin_replicas import Reassignment

ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The state of a partition.

    `leader_id` is None if the partition has no leader. `elr` is None if the broker does not support the ELR (KIP-966).
    """

    partition: int
    leader_id: int | None
    replicas: Sequence[int]
    in_sync_replicas: Sequence[int]
    elr: Sequence[int] | None = None
    last_known_elr: Sequence[int] | None = None
    reassignment: Reassignment | None = None

    @property
    def replication_factor(self) -> int:
        """The replication factor, without the replicas that a reassignment is adding."""
        change = self.reassignment
        if change is not None and set(self.replicas) & {*change.adding, *change.removing}:
            return len(change.replicas) - len(change.adding)
        return len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions. `configs` contains the configs that are not defaults, in the broker's order."""

    name: str
    topic_id: str
    partitions: Sequence[PartitionDescription]
    configs: Mapping[str, str | None] = field(default_factory=dict)
    min_in_sync_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The topics and partitions that --describe shows; by default, every topic and all its partitions."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    only_overrides: bool = False

    @property
    def filters_partitions(self) -> bool:
        """Whether a flag limits the output to partitions in a certain state."""
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr

    def shows(self, topic: TopicDescription, partition: PartitionDescription, live: Collection[int]) -> bool:
        """Return whether to show the partition. `live` contains the ids of the live brokers."""
        count = len(partition.in_sync_replicas)
        has_leader = partition.leader_id is not None
        return (
            not self.filters_partitions
            or (self.under_replicated and count < partition.replication_factor)
            or (self.unavailable and (not has_leader or partition.leader_id not in live))
            or (self.under_min_isr and (not has_leader or count < topic.min_in_sync_replicas))
            or (self.at_min_isr and count == topic.min_in_sync_replicas)
        )


def describe(topic: TopicDescription, report: Report, live: Collection[int]) -> Iterator[str]:
    """Yield the lines to print for one topic, as selected by `report`. `live` contains the ids of the live brokers."""
    if not report.filters_partitions and (topic.configs or not report.only_overrides):
        yield _topic_line(topic)
    if not report.only_overrides:
        for partition in topic.partitions:
            if report.shows(topic, partition, live):
                yield _partition_line(topic.name, partition)


def _topic_line(topic: TopicDescription) -> str:
    parts = [f"Topic: {topic.name}"]
    if topic.topic_id != ZERO_ID:
        parts.append(f"TopicId: {topic.topic_id}")
    parts.append(f"PartitionCount: {len(topic.partitions)}")
    parts.append(f"ReplicationFactor: {topic.partitions[0].replication_factor if topic.partitions else 0}")
    parts.append("Configs: " + ",".join(f"{name}={_java(value)}" for name, value in topic.configs.items()))
    return "\t".join(parts)


def _java(value: str | None) -> str:
    return "null" if value is None else value


def _partition_line(topic: str, partition: PartitionDescription) -> str:
    parts = [
        "",
        f"Topic: {topic}",
        f"Partition: {partition.partition}",
        f"Leader: {'none' if partition.leader_id is None else partition.leader_id}",
        f"Replicas: {_joined(partition.replicas)}",
        f"Isr: {_joined(partition.in_sync_replicas)}",
    ]
    if partition.reassignment is not None:
        parts.append(f"Adding Replicas: {_joined(partition.reassignment.adding)}")
        parts.append(f"Removing Replicas: {_joined(partition.reassignment.removing)}")
    parts.append(f"Elr: {_joined(partition.elr)}")
    parts.append(f"LastKnownElr: {_joined(partition.last_known_elr)}")
    return "\t".join(parts)


def _joined(numbers: Sequence[int] | None) -> str:
    return "N/A" if numbers is None else ",".join(map(str, numbers))
