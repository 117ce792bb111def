"""kafka-reassign-partitions: move partitions to other brokers (Kafka's ReassignPartitionsCommand, KIP-455).

A plan contains each partition's brokers. Each broker chooses the log directory of its replica, so a plan may name a
log directory only if the broker has no other log directory.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace_broker.log.config import THROTTLED_RATES
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import json_files
from headrace_broker.tools.command_line import Parser, admin_client, broker_message, run, run_and_exit
from headrace_broker.tools.reassignment_plans import (
    Move,
    ReassignmentPlan,
    Replica,
    as_json,
    check_brokers,
    check_log_dirs,
    check_plan,
    join_numbers,
    list_lines,
    log_dir_states,
    parse_brokers,
    parse_plan,
    parse_topics,
    plan_states,
    propose,
    replica_moves,
)
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin, Resource
    from headrace_broker.client.errors import BrokerError

_REQUIRED = {
    "generate": ("broker_list", "topics_to_move_json_file"),
    "execute": ("reassignment_json_file",),
    "verify": ("reassignment_json_file",),
    "cancel": ("reassignment_json_file",),
    "list": (),
}
"""{action: the options that it requires}."""
_ACTIONS_OF_OPTION = {
    "broker_list": ("generate",),
    "topics_to_move_json_file": ("generate",),
    "disable_rack_aware": ("generate",),
    "reassignment_json_file": ("execute", "verify", "cancel"),
    "throttle": ("execute",),
    "replica_alter_log_dirs_throttle": ("execute",),
    "additional": ("execute",),
    "disallow_replication_factor_change": ("execute",),
    "timeout": ("execute", "cancel"),
    "preserve_throttles": ("verify", "cancel"),
    "bootstrap_controller": ("cancel", "list"),
}
"""{option: the actions that allow it}."""
_EXISTING = (
    "Cannot execute because there is an existing partition assignment. Use --additional to override this and create "
    "a new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
_UNPREFIXED = ("Cannot execute because ", "Error reassigning ", "Error cancelling ")
"""The prefixes of messages that Kafka's tool prints unchanged; it prints "Error: " before all other messages."""
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_BROKER_THROTTLES = (*THROTTLED_RATES, "replica.alter.log.dirs.io.max.bytes.per.second")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    action = _check(parser, options)
    return run(
        _run_action(options, action),
        on_error=lambda text: print(text if text.startswith(_UNPREFIXED) else f"Error: {text}"),
    )


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-reassign-partitions", "Move partitions to other brokers.")
    parser.add_bootstrap_server(None)
    parser.add_bootstrap_controller()
    parser.add_command_config()
    add = parser.add_argument
    add("--generate", action="store_true", help="Print a proposed assignment without moving anything.")
    add("--execute", action="store_true", help="Start the reassignment in --reassignment-json-file.")
    add("--verify", action="store_true", help="Show whether the reassignment is complete; if so, remove its throttles.")
    add("--cancel", action="store_true", help="Cancel the reassignment.")
    add("--list", action="store_true", help="List the reassignments in progress.")
    add("--reassignment-json-file", metavar="FILE", help="The reassignment, as --generate prints it.")
    add("--topics-to-move-json-file", metavar="FILE", help='{"topics": [{"topic": "foo"}], "version": 1}')
    add("--broker-list", metavar="0,1,…", help="The brokers to move the topics to.")
    add("--disable-rack-aware", action="store_true", help="Ignore racks.")
    add("--throttle", type=int, metavar="BYTES/S", help="The limit of replication traffic between brokers.")
    add("--replica-alter-log-dirs-throttle", type=int, metavar="BYTES/S", help=argparse.SUPPRESS)
    add("--timeout", type=int, metavar="MS", help=argparse.SUPPRESS)
    add("--additional", action="store_true", help="Execute even if other reassignments are in progress.")
    add("--preserve-throttles", action="store_true", help="Do not change throttles.")
    add(
        "--disallow-replication-factor-change",
        action="store_true",
        help="Fail if the reassignment would change a replication factor.",
    )
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> str:
    action = parser.only_action(options, tuple(_REQUIRED))
    parser.required_server(options)
    parser.require(options, *_REQUIRED[action])
    parser.require_action(options, action, _ACTIONS_OF_OPTION)
    return action


async def _run_action(options: argparse.Namespace, action: str) -> int:
    if action == "generate":
        topics = parse_topics(json_files.read_json(options.topics_to_move_json_file))
        brokers = parse_brokers(options.broker_list)
    elif action != "list":
        plan = parse_plan(json_files.read_json(options.reassignment_json_file))
    async with admin_client(options) as admin:
        if action == "generate":
            await _generate(admin, topics, brokers, uses_racks=not options.disable_rack_aware)
        elif action == "execute":
            await _execute(admin, plan, options)
        elif action == "verify":
            await _verify(admin, plan, keeps_throttles=options.preserve_throttles)
        elif action == "cancel":
            await _cancel(admin, plan, keeps_throttles=options.preserve_throttles)
        else:
            print("\n".join(list_lines(await admin.list_reassignments())))
    return 0


async def _replicas(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, Sequence[int]]:
    """Return the replicas of these topics' partitions; topics that do not exist are ignored."""
    from headrace_broker.client.errors import BrokerError

    found: dict[TopicPartition, Sequence[int]] = {}
    for name, topic in (await admin.describe_topics(sorted(set(topics)))).items():
        if not isinstance(topic, BrokerError):
            found |= {(name, view.partition): list(view.replicas) for view in topic.partitions}
    return found


async def _existing(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, Sequence[int]]:
    """Return the replicas of these topics' partitions. Raises ToolError for a topic that does not exist."""
    names = list(topics)
    found = await _replicas(admin, names)
    missing = [topic for topic in names if (topic, 0) not in found]
    if missing:
        raise ToolError(f"Topic {missing[0]} not found.")
    return found


async def _log_dirs(
    admin: Admin, current: Mapping[TopicPartition, Sequence[int]], *, for_plan: bool = True
) -> dict[Replica, str]:
    """Return the log directories of the replicas in `current`.

    The result contains only replicas on live brokers. If `for_plan` is true, the result omits replicas on brokers with
    several log directories, because a plan cannot choose between the log directories.
    """
    live = {node.node_id for node in (await admin.describe_cluster()).nodes}
    brokers = sorted({broker for replicas in current.values() for broker in replicas} & live)
    return {
        (topic.name, part.partition_index, broker): directory.log_dir
        for broker, directories in (await admin.describe_log_dirs(brokers)).items()
        if len(directories) == 1 or not for_plan
        for directory in directories
        for topic in directory.topics
        for part in topic.partitions
        if (topic.name, part.partition_index) in current and not part.is_future_key
    }


# -- generate --------------------------------------------------------------------------------------------------------


async def _generate(admin: Admin, topics: Sequence[str], brokers: Sequence[int], *, uses_racks: bool) -> None:
    current = await _existing(admin, topics)
    nodes = (await admin.describe_cluster()).nodes
    racks = {node.node_id: node.rack if uses_racks else None for node in nodes if node.node_id in brokers}
    if 0 < sum(rack is None for rack in racks.values()) < len(racks):
        raise ToolError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    check_brokers(brokers, [node.node_id for node in nodes], current)
    proposed = propose(current, racks, random.randrange(1024))
    print(f"Current partition replica assignment\n{as_json(current, await _log_dirs(admin, current))}\n")
    print(f"Proposed partition reassignment configuration\n{as_json(proposed, {})}")


# -- execute ---------------------------------------------------------------------------------------------------------


async def _execute(admin: Admin, plan: ReassignmentPlan, options: argparse.Namespace) -> None:
    check_plan(plan)
    moving = await admin.list_reassignments()
    if moving and not options.additional:
        raise ToolError(_EXISTING)
    live = {node.node_id for node in (await admin.describe_cluster()).nodes}
    unknown = sorted({broker for replicas in plan.replicas.values() for broker in replicas} - live)
    if unknown:
        raise ToolError(f"Unknown broker id {unknown[0]}")
    everything = await _existing(admin, (topic for topic, _ in plan.replicas))
    missing = sorted(plan.replicas.keys() - everything.keys())
    if missing:
        raise ToolError(f"Unable to find partition: {', '.join(json_files.names(missing))}")
    await _check_directories(admin, plan)
    current = {partition: everything[partition] for partition in plan.replicas}
    print(f"Current partition replica assignment\n\n{as_json(current, await _log_dirs(admin, current))}\n")
    print("Save this to use as the --reassignment-json-file option during rollback")
    if options.throttle is not None and options.throttle >= 0:
        await _throttle(admin, replica_moves(plan, moving, current), options.throttle)
    results = await admin.alter_reassignments(
        plan.replicas, may_change_replication_factor=not options.disallow_replication_factor_change
    )
    _raise_for("Error reassigning partition(s):", results)
    plural = "" if len(plan.replicas) == 1 else "s"
    names = ",".join(json_files.names(sorted(plan.replicas)))
    print(f"Successfully started partition reassignment{plural} for {names}")


async def _check_directories(admin: Admin, plan: ReassignmentPlan) -> None:
    brokers = sorted({broker for _, _, broker in plan.log_dirs})
    found = await admin.describe_log_dirs(brokers)
    check_log_dirs(plan, {broker: [item.log_dir for item in directories] for broker, directories in found.items()})


async def _throttle(admin: Admin, moves: Mapping[TopicPartition, Move], bytes_per_s: int) -> None:
    """Set the leader throttle for the existing replicas of `moves`, and the follower throttle for the new replicas."""
    from headrace_broker.client.admin import BROKER, SET, TOPIC

    print(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle "
        "is removed."
    )
    changes: dict[Resource, list[tuple[str, int, str | None]]] = {}
    for topic in sorted({topic for topic, _ in moves}):
        topic_moves = [(index, move) for (name, index), move in moves.items() if name == topic]
        sides = [sorted(f"{index}:{broker}" for index, move in topic_moves for broker in move[side]) for side in (0, 1)]
        changes[TOPIC, topic] = [(key, SET, ",".join(value)) for key, value in zip(_THROTTLED, sides, strict=True)]
    for broker in sorted({broker for move in moves.values() for side in move for broker in side}):
        changes[BROKER, str(broker)] = [(key, SET, str(bytes_per_s)) for key in THROTTLED_RATES]
    for error in (await admin.incremental_alter_configs(changes)).values():
        if error is not None:
            raise ToolError(broker_message(error))
    print(f"The inter-broker throttle limit was set to {bytes_per_s} B/s")


def _raise_for(title: str, results: Mapping[TopicPartition, BrokerError | None]) -> None:
    failed = [f"{topic}-{index}: {broker_message(error)}" for (topic, index), error in sorted(results.items()) if error]
    if failed:
        raise ToolError("\n".join([title, *failed]))


# -- verify and cancel -----------------------------------------------------------------------------------------------


async def _verify(admin: Admin, plan: ReassignmentPlan, *, keeps_throttles: bool) -> None:
    moving = await admin.list_reassignments()
    current = await _replicas(admin, (topic for topic, _ in plan.replicas))
    print("\n".join(plan_states(plan, moving, current)))
    log_dirs = await _log_dirs(admin, current, for_plan=False) if plan.log_dirs else {}
    print("\n".join(log_dir_states(plan, log_dirs)))
    if not moving and not keeps_throttles:
        await _clear_throttles(admin, plan)


async def _cancel(admin: Admin, plan: ReassignmentPlan, *, keeps_throttles: bool) -> None:
    moving = await admin.list_reassignments(plan.replicas)
    active = sorted(partition for partition, move in moving.items() if move.adding or move.removing)
    if active:
        results = await admin.alter_reassignments(dict.fromkeys(active))
        plural = "" if len(active) == 1 else "s"
        _raise_for(f"Error cancelling partition reassignment{plural} for:", results)
        print(f"Successfully cancelled partition reassignment{plural} for: {','.join(json_files.names(active))}")
    else:
        print("None of the specified partition reassignments are active.")
    print("None of the specified partition moves are active.")
    if not keeps_throttles:
        await _clear_throttles(admin, plan)


async def _clear_throttles(admin: Admin, plan: ReassignmentPlan) -> None:
    from headrace_broker.client.admin import BROKER, DELETE, TOPIC

    live = {node.node_id for node in (await admin.describe_cluster()).nodes}
    brokers = sorted(live | {broker for replicas in plan.replicas.values() for broker in replicas})
    topics = sorted({topic for topic, _ in plan.replicas})
    print(f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {join_numbers(brokers)}")
    await _delete_keys(admin, [(BROKER, str(item)) for item in brokers if item in live], _BROKER_THROTTLES, DELETE)
    print(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {','.join(topics)}")
    await _delete_keys(admin, [(TOPIC, topic) for topic in topics], _THROTTLED, DELETE)


async def _delete_keys(admin: Admin, resources: Sequence[Resource], keys: Sequence[str], delete: int) -> None:
    """Delete the dynamic configs `keys` from each resource that has them. Raises ToolError.

    `delete` is the number of the delete operation in IncrementalAlterConfigs.
    """
    from headrace_broker.client.errors import BrokerError

    for resource, entries in (await admin.describe_configs(dict.fromkeys(resources, keys))).items():
        if isinstance(entries, BrokerError):
            continue  # the topic was deleted
        is_set = [entry.name for entry in entries if entry.config_source in (1, 2)]
        if is_set:
            error = (await admin.incremental_alter_configs({resource: [(key, delete, "") for key in is_set]}))[resource]
            if error is not None:
                raise ToolError(broker_message(error))


if __name__ == "__main__":
    entry()
