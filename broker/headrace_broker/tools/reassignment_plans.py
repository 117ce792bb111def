"""Parses, proposes and formats the plans of kafka-reassign-partitions. This module does no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.placement import place_partitions
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import json_files
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin_replicas import Reassignment

ANY_LOG_DIR = "any"
Move = tuple[set[int], set[int]]
"""(brokers that already have a replica, brokers that receive a new replica)."""
Replica = tuple[str, int, int]
"""(topic, partition, broker)."""


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """The target replicas of partitions, and the target log directories of some of these replicas."""

    replicas: Mapping[TopicPartition, Sequence[int]]
    log_dirs: Mapping[Replica, str]


def parse_plan(data: Mapping[str, Any]) -> ReassignmentPlan:
    """Parse the JSON object of a reassignment file. Raises ToolError."""
    replicas: dict[TopicPartition, list[int]] = {}
    log_dirs: dict[Replica, str] = {}
    duplicates: list[TopicPartition] = []
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
            duplicates.append(partition)
        replicas[partition] = brokers
        for broker, directory in zip(brokers, directories, strict=True):
            if directory != ANY_LOG_DIR:
                log_dirs[*partition, broker] = directory
    if duplicates:
        names = ",".join(json_files.names(list(dict.fromkeys(duplicates))))
        raise ToolError(f"Partition reassignment contains duplicate topic partitions: {names}")
    return ReassignmentPlan(replicas, log_dirs)


def check_plan(plan: ReassignmentPlan) -> None:
    """Raise ToolError if the plan is empty, or a partition has no replicas or lists a broker twice."""
    if not plan.replicas:
        raise ToolError("Partition reassignment list cannot be empty")
    if not all(plan.replicas.values()):
        raise ToolError("Partition replica list cannot be empty")
    errors = []
    for partition, brokers in plan.replicas.items():
        duplicates = [broker for broker in dict.fromkeys(brokers) if list(brokers).count(broker) > 1]
        if duplicates:
            errors.append(f"{_name(partition)} contains multiple entries for {join_numbers(duplicates)}")
    if errors:
        raise ToolError(f"Partition replica lists may not contain duplicate entries: {'. '.join(errors)}")


def check_log_dirs(plan: ReassignmentPlan, directories: Mapping[int, Sequence[str]]) -> None:
    """Raise ToolError if the plan names a log directory, unless this is the only log directory of its broker.

    `directories` maps each broker to its log directories. Each broker chooses the log directory of its replica, so a
    plan cannot choose between several log directories.
    """
    for (topic, index, broker), directory in plan.log_dirs.items():
        if directories[broker] != [directory]:
            raise ToolError(
                f"{topic}-{index}: log_dirs contains {directory} for broker {broker}, but a reassignment cannot choose "
                f"a log directory of this broker (its log directories are {', '.join(directories[broker])}): "
                'use "any" to let the broker choose'
            )


def parse_topics(data: Mapping[str, Any]) -> list[str]:
    """Return the topics in the JSON object of --topics-to-move-json-file. Raises ToolError."""
    topics = [json_files.value(entry, "topic", str) for entry in json_files.entries({"topics": [], **data}, "topics")]
    duplicates = [topic for topic in dict.fromkeys(topics) if topics.count(topic) > 1]
    if duplicates:
        raise ToolError(f"List of topics to reassign contains duplicate entries: [{', '.join(duplicates)}]")
    return topics


def parse_brokers(text: str) -> list[int]:
    """Return the ids of `--broker-list`. Raises ToolError."""
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ToolError(f"--broker-list {text}: expected broker ids, separated by commas") from None
    duplicates = [broker for broker in dict.fromkeys(brokers) if brokers.count(broker) > 1]
    if duplicates:
        raise ToolError(f"Broker list contains duplicate entries: [{join_numbers(duplicates, ', ')}]")
    return brokers


def check_brokers(
    brokers: Sequence[int], live: Collection[int], current: Mapping[TopicPartition, Sequence[int]]
) -> None:
    """Raise ToolError if a broker of `--broker-list` is not live, or if the list has too few brokers for a topic.

    `brokers` is the list, and `current` contains the current replicas of each partition.
    """
    missing = [broker for broker in brokers if broker not in live]
    if missing:
        raise ToolError(
            f"--broker-list {join_numbers(brokers)}: broker {join_numbers(missing)} is not live; the live brokers "
            f"are {join_numbers(sorted(live))}"
        )
    for (topic, _), replicas in current.items():
        if len(replicas) > len(brokers):
            raise ToolError(
                f"--broker-list {join_numbers(brokers)}: topic {topic} has replication factor {len(replicas)} and "
                f"needs at least {len(replicas)} brokers"
            )


def propose(
    current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None], start: int
) -> dict[TopicPartition, Sequence[int]]:
    """Return new replicas for every partition in `current`, placed round-robin on the brokers in `racks`.

    `start` is the position in the rotation at which the first partition of each topic is placed. There must be at least
    as many brokers as replicas per partition.
    """
    brokers = {broker: BrokerImage(broker, bytes(16), 0, (), rack=rack, fenced=False) for broker, rack in racks.items()}
    image = MetadataImage(brokers=brokers)
    proposed: dict[TopicPartition, Sequence[int]] = {}
    for topic in sorted({topic for topic, _ in current}):
        indexes = sorted(index for name, index in current if name == topic)
        places = place_partitions(image, start, len(indexes), len(current[topic, indexes[0]]), topic)
        proposed |= {(topic, index): list(replicas) for index, replicas in zip(indexes, places, strict=True)}
    return proposed


def replica_moves(
    plan: ReassignmentPlan,
    moving: Mapping[TopicPartition, Reassignment],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, Move]:
    """Return the replica moves that are in progress once the plan has started.

    They include the moves of the earlier reassignments in `moving`. `current` contains the current replicas.
    """
    found: dict[TopicPartition, Move] = {
        partition: (set(move.replicas) - set(move.adding), set(move.adding)) for partition, move in moving.items()
    }
    for partition, target in plan.replicas.items():
        sources = found[partition][0] if partition in found else set(current[partition])
        found[partition] = (sources, set(target) - sources)
    return found


def as_json(replicas: Mapping[TopicPartition, Sequence[int]], log_dirs: Mapping[Replica, str]) -> str:
    """Return an assignment in the JSON format that --execute reads."""
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


def plan_states(
    plan: ReassignmentPlan,
    moving: Mapping[TopicPartition, Reassignment],
    current: Mapping[TopicPartition, Sequence[int]],
) -> list[str]:
    """Return the lines of --verify: the reassignment state of each partition of a plan.

    `moving` contains the reassignments in progress, and `current` contains the current replicas.
    """
    lines = ["Status of partition reassignment:"]
    for partition, target in sorted(plan.replicas.items()):
        name, found = _name(partition), list(current.get(partition, ()))
        if partition in moving:
            lines.append(f"Reassignment of partition {name} is still in progress.")
        elif found == list(target):
            lines.append(f"Reassignment of partition {name} is completed.")
        else:
            lines.append(
                f"There is no active reassignment of partition {name}, but replica set is {join_numbers(found)} "
                f"rather than {join_numbers(target)}."
            )
    return lines


def log_dir_states(plan: ReassignmentPlan, found: Mapping[Replica, str]) -> list[str]:
    """Return the lines of --verify for a plan's log directories. `found` maps replicas to their log directories."""
    lines = []
    for (topic, index, broker), target in sorted(plan.log_dirs.items()):
        current = found.get((topic, index, broker))
        if current is None:
            lines.append(f"Partition {topic}-{index} cannot be found in any live log directory on broker {broker}.")
        elif current == target:
            lines.append(f"Reassignment of replica {topic}-{index}-{broker} completed successfully.")
        else:
            lines.append(
                f"Partition {topic}-{index} on broker {broker} is not being moved from log dir {current} to {target}."
            )
    return lines


def list_lines(moving: Mapping[TopicPartition, Reassignment]) -> list[str]:
    """Return the lines of --list for the reassignments in progress."""
    if not moving:
        return ["No partition reassignments found."]
    lines = ["Current partition reassignments:"]
    for partition, move in sorted(moving.items()):
        adding = f" adding: {join_numbers(move.adding)}." if move.adding else ""
        removing = f" removing: {join_numbers(move.removing)}." if move.removing else ""
        lines.append(f"{_name(partition)}: replicas: {join_numbers(move.replicas)}.{adding}{removing}")
    return lines


def join_numbers(numbers: Iterable[int], separator: str = ",") -> str:
    """Join numbers with a separator."""
    return separator.join(map(str, numbers))


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
