"""Reassignments as JSON and as text: what kafka-reassign-partitions reads, proposes and prints. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.placement import place_partitions
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import json_files
from headrace_broker.tools.command_line import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin_replicas import Reassignment

ANY_LOG_DIR = "any"
Move = tuple[set[int], set[int]]
"""(brokers that have the partition, brokers that get it)."""
Replica = tuple[str, int, int]
"""(topic, partition, broker)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The wanted replicas of partitions, and the log directories that were named for some of them."""

    replicas: Mapping[TopicPartition, Sequence[int]]
    log_dirs: Mapping[Replica, str]


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the reassignment in a file's object. Raises ToolError."""
    replicas: dict[TopicPartition, list[int]] = {}
    log_dirs: dict[Replica, str] = {}
    twice: list[TopicPartition] = []
    for entry in json_files.entries({"partitions": [], **data}, "partitions"):
        partition = json_files.topic_partition(entry)
        brokers = json_files.value(entry, "replicas", list)
        if not all(isinstance(broker, int) for broker in brokers):
            raise ToolError(f'"replicas" of {_name(partition)} must be broker ids')
        directories = entry.get("log_dirs", [ANY_LOG_DIR] * len(brokers))
        if not isinstance(directories, list) or len(directories) != len(brokers):
            raise ToolError(
                f"Size of replicas list {brokers} is different from size of log dirs list {directories} "
                f"for partition {_name(partition)}"
            )
        if partition in replicas:
            twice.append(partition)
        replicas[partition] = brokers
        for broker, directory in zip(brokers, directories, strict=True):
            if directory != ANY_LOG_DIR:
                log_dirs[*partition, broker] = directory
    if twice:
        names = ",".join(json_files.names(list(dict.fromkeys(twice))))
        raise ToolError(f"Partition reassignment contains duplicate topic partitions: {names}")
    return Plan(replicas, log_dirs)


def check_plan(plan: Plan) -> None:
    """Raises ToolError when nothing, or nonsense, would be moved."""
    if not plan.replicas:
        raise ToolError("Partition reassignment list cannot be empty")
    if not all(plan.replicas.values()):
        raise ToolError("Partition replica list cannot be empty")
    faults = []
    for partition, brokers in plan.replicas.items():
        twice = [broker for broker in dict.fromkeys(brokers) if list(brokers).count(broker) > 1]
        if twice:
            faults.append(f"{_name(partition)} contains multiple entries for {joined(twice)}")
    if faults:
        raise ToolError(f"Partition replica lists may not contain duplicate entries: {'. '.join(faults)}")


def check_log_dirs(plan: Plan, there: Mapping[int, Sequence[str]]) -> None:
    """Raises ToolError when a plan names a directory that its broker (`there`: {broker: directories}) might not choose.

    Moves between the log directories of a broker are not built.
    """
    for (topic, index, broker), directory in plan.log_dirs.items():
        if there[broker] != [directory]:
            raise ToolError(
                f"{topic}-{index}: log_dirs names {directory} for broker {broker}, which has "
                f"{', '.join(there[broker])}; moves to a certain one of its log directories are not built: "
                'write "any", and the broker chooses'
            )


def parse_topics(data: Mapping[str, Any]) -> list[str]:
    """Return the topics to move. Raises ToolError."""
    topics = [json_files.value(entry, "topic", str) for entry in json_files.entries({"topics": [], **data}, "topics")]
    twice = [topic for topic in dict.fromkeys(topics) if topics.count(topic) > 1]
    if twice:
        raise ToolError(f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]")
    return topics


def parse_brokers(text: str) -> list[int]:
    """Return the ids of `--broker-list`. Raises ToolError."""
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ToolError(f"--broker-list {text}: expected broker ids, separated by commas") from None
    twice = [broker for broker in dict.fromkeys(brokers) if brokers.count(broker) > 1]
    if twice:
        raise ToolError(f"Broker list contains duplicate entries: [{joined(twice, ', ')}]")
    return brokers


def check_brokers(
    wanted: Sequence[int], live: Collection[int], current: Mapping[TopicPartition, Sequence[int]]
) -> None:
    """Raises ToolError when the brokers of `--broker-list` are not there, or too few for what is to be moved."""
    gone = [broker for broker in wanted if broker not in live]
    if gone:
        raise ToolError(
            f"--broker-list {joined(wanted)}: there is no broker {joined(gone)} now; the cluster "
            f"has {joined(sorted(live))}"
        )
    for (topic, _), replicas in current.items():
        if len(replicas) > len(wanted):
            raise ToolError(
                f"--broker-list {joined(wanted)}: topic {topic} has {len(replicas)} replicas of each partition, which "
                "take as many brokers"
            )


def propose(
    current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None], start: int
) -> dict[TopicPartition, Sequence[int]]:
    """Return new replicas for every partition, striped over these brokers from place `start` on; they are enough."""
    brokers = {broker: BrokerImage(broker, bytes(16), 0, (), rack=rack, fenced=False) for broker, rack in racks.items()}
    image = MetadataImage(brokers=brokers)
    proposed: dict[TopicPartition, Sequence[int]] = {}
    for topic in sorted({topic for topic, _ in current}):
        indexes = sorted(index for name, index in current if name == topic)
        places = place_partitions(image, start, len(indexes), len(current[topic, indexes[0]]), topic)
        proposed |= {(topic, index): list(replicas) for index, replicas in zip(indexes, places, strict=True)}
    return proposed


def replica_moves(
    plan: Plan, moving: Mapping[TopicPartition, Reassignment], current: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Move]:
    """Return what copies what once a plan is begun, the moves under way included."""
    found: dict[TopicPartition, Move] = {
        partition: (set(move.replicas) - set(move.adding), set(move.adding)) for partition, move in moving.items()
    }
    for partition, wanted in plan.replicas.items():
        sources = found[partition][0] if partition in found else set(current[partition])
        found[partition] = (sources, set(wanted) - sources)
    return found


def as_json(replicas: Mapping[TopicPartition, Sequence[int]], log_dirs: Mapping[Replica, str]) -> str:
    """Return an assignment as the file that --execute reads."""
    partitions = [
        {
            "topic": topic,
            "partition": index,
            "replicas": list(brokers),
            "log_dirs": [log_dirs.get((topic, index, broker), ANY_LOG_DIR) for broker in brokers],
        }
        for (topic, index), brokers in sorted(replicas.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"), ensure_ascii=False)


def states(
    plan: Plan, moving: Mapping[TopicPartition, Reassignment], current: Mapping[TopicPartition, Sequence[int]]
) -> list[str]:
    """Return the lines of --verify: what has become of each partition of a plan."""
    lines = ["Status of partition reassignment:"]
    for partition, target in sorted(plan.replicas.items()):
        name, found = _name(partition), list(current.get(partition, ()))
        if partition in moving:
            lines.append(f"Reassignment of partition {name} is still in progress.")
        elif found == list(target):
            lines.append(f"Reassignment of partition {name} is completed.")
        else:
            lines.append(
                f"There is no active reassignment of partition {name}, but replica set is {joined(found)} "
                f"rather than {joined(target)}."
            )
    return lines


def log_dir_states(plan: Plan, found: Mapping[Replica, str]) -> list[str]:
    """Return the lines of --verify for the log directories that a plan names; `found`: where the replicas are."""
    lines = []
    for (topic, index, broker), wanted in sorted(plan.log_dirs.items()):
        there = found.get((topic, index, broker))
        if there is None:
            lines.append(f"Partition {topic}-{index} cannot be found in any live log directory on broker {broker}.")
        elif there == wanted:
            lines.append(f"Reassignment of replica {topic}-{index}-{broker} completed successfully.")
        else:
            lines.append(
                f"Partition {topic}-{index} on broker {broker} is not being moved from log dir {there} to {wanted}."
            )
    return lines


def listing(moving: Mapping[TopicPartition, Reassignment]) -> list[str]:
    """Return the lines of --list."""
    if not moving:
        return ["No partition reassignments found."]
    lines = ["Current partition reassignments:"]
    for partition, move in sorted(moving.items()):
        adding = f" adding: {joined(move.adding)}." if move.adding else ""
        removing = f" removing: {joined(move.removing)}." if move.removing else ""
        lines.append(f"{_name(partition)}: replicas: {joined(move.replicas)}.{adding}{removing}")
    return lines


def joined(numbers: Iterable[int], separator: str = ",") -> str:
    """Return numbers as Kafka lists them."""
    return separator.join(map(str, numbers))


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
