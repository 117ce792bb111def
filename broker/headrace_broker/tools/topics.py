"""kafka-topics: create, delete, alter, list and describe topics (Kafka's TopicCommand)."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace_broker.protocol.topic_names import INTERNAL_TOPICS
from headrace_broker.tools.command_line import Parser, admin_client, broker_message, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError
from headrace_broker.tools.topic_descriptions import ZERO_ID, Report, describe
from headrace_broker.tools.topic_filter import select_topics

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin
    from headrace_broker.client.errors import BrokerError

_ACTIONS = ("list", "describe", "create", "alter", "delete")
_REPORTS = (
    "under_replicated_partitions",
    "unavailable_partitions",
    "under_min_isr_partitions",
    "at_min_isr_partitions",
)
_ACTIONS_OF_OPTION = {
    "config": ("create",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    **dict.fromkeys((*_REPORTS, "topics_with_overrides"), ("describe",)),
    "if_exists": ("alter", "delete", "describe"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
}
"""{option: the actions that allow the option}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    action = _check(parser, options)
    return run(
        _run_action(options, action), on_error=lambda text: print(f"Error while executing topic command : {text}")
    )


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-topics", "Create, delete, describe or change topics.")
    parser.add_bootstrap_server()
    parser.add_command_config()
    add = parser.add_argument
    add("--list", action="store_true", help="List the names of all topics.")
    add("--describe", action="store_true", help="Show topics and their partitions.")
    add("--create", action="store_true", help="Create a topic.")
    add("--alter", action="store_true", help="Add partitions (use kafka-configs to change configs).")
    add("--delete", action="store_true", help="Delete topics.")
    add("--topic", help="The topic; a regular expression, except with --create.")
    add("--topic-id", help="The id of the topic to describe.")
    add("--partitions", type=int, metavar="N", help="The number of partitions. Default: the broker's num.partitions.")
    add(
        "--replication-factor",
        type=int,
        metavar="N",
        help="The replication factor. Default: the broker's default.replication.factor.",
    )
    add(
        "--replica-assignment",
        metavar="0:1,1:2,…",
        help="The broker ids of each partition's replicas; commas separate partitions, colons separate replicas.",
    )
    add("--config", action="append", metavar="NAME=VALUE", help="With --create: a config of the topic.")
    add("--delete-config", action="append", help=argparse.SUPPRESS)
    add("--if-exists", action="store_true", help="Do nothing, instead of failing, if the topic does not exist.")
    add("--if-not-exists", action="store_true", help="Do nothing, instead of failing, if the topic exists.")
    add("--exclude-internal", action="store_true", help="Exclude internal topics.")
    add("--topics-with-overrides", action="store_true", help="Show only topics with config overrides.")
    add("--under-replicated-partitions", action="store_true", help="Show only under-replicated partitions.")
    add("--unavailable-partitions", action="store_true", help="Show only partitions without an available leader.")
    add("--under-min-isr-partitions", action="store_true", help="Show only partitions below min.insync.replicas.")
    add("--at-min-isr-partitions", action="store_true", help="Show only partitions at min.insync.replicas.")
    add("--partition-size-limit-per-response", type=int, metavar="N", help="Partitions per response to --describe.")
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> str:
    action = parser.only_action(options, _ACTIONS)
    parser.required_server(options)
    if options.delete_config:
        print("delete-config option is no longer supported; use kafka-configs instead.", file=sys.stderr)
    if action in ("create", "alter", "delete"):
        parser.require(options, "topic")
    parser.require_action(options, action, _ACTIONS_OF_OPTION)
    if action == "alter":
        if options.config:
            parser.error("kafka-topics --alter does not change configs; use kafka-configs")
        parser.require(options, "partitions")
    if action == "create":
        parser.reject_combination(options, "replica_assignment", ["partitions", "replication_factor"])
    if action == "describe" and options.if_exists and not (options.topic or options.topic_id):
        parser.error("--topic or --topic-id is required to describe a topic")
    for name in _REPORTS:
        parser.reject_combination(options, name, ["topics_with_overrides"])
    return action


async def _run_action(options: argparse.Namespace, action: str) -> int:
    async with admin_client(options) as admin:
        if action == "create":
            await _create(admin, options)
        elif action == "alter":
            await _alter(admin, options)
        elif action == "list":
            print("\n".join(await _selected(admin, options)))
        elif action == "describe":
            await _describe(admin, options)
        else:
            _raise_first(await admin.delete_topics(await _existing(admin, options)))
    return 0


def _raise_first(results: Mapping[str, BrokerError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise ToolError(broker_message(error))


async def _selected(admin: Admin, options: argparse.Namespace) -> list[str]:
    names = await admin.list_topics(include_internal=True)
    return select_topics(names, options.topic, exclude_internal=options.exclude_internal)


async def _existing(admin: Admin, options: argparse.Namespace) -> list[str]:
    """Return the topics that --topic matches. Raises ToolError if no topic matches and --if-exists is not given."""
    names = await _selected(admin, options)
    if options.topic and not names and not options.if_exists:
        raise ToolError(f"Topic '{options.topic}' does not exist as expected")
    return names


# -- create and alter ------------------------------------------------------------------------------------------------


def parse_assignment(text: str) -> dict[int, list[int]]:
    """Parse the value of `--replica-assignment` into {partition: broker ids}. Raises ToolError."""
    assignment: dict[int, list[int]] = {}
    for partition, brokers in enumerate(text.split(",")):
        try:
            replicas = [int(broker) for broker in brokers.split(":")]
        except ValueError:
            raise ToolError(
                f"replica assignment of partition {partition}: '{brokers}' is not a list of broker ids"
            ) from None
        duplicates = sorted({broker for broker in replicas if replicas.count(broker) > 1})
        if duplicates:
            names = ",".join(map(str, duplicates))
            raise ToolError(f"Partition replica lists may not contain duplicate entries: {names}")
        if len(replicas) != len(assignment.get(0, replicas)):
            raise ToolError(f"Partition {partition} has different replication factor: {replicas}")
        assignment[partition] = replicas
    return assignment


def parse_configs(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse configs of the form `name=value`; a value may contain equals signs. Raises ToolError."""
    configs = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ToolError('Invalid topic config: all configs to be added must be in the format "key=val".')
        configs[name.strip()] = value.strip()
    return configs


async def _create(admin: Admin, options: argparse.Namespace) -> None:
    from headrace_broker.client.admin import NewTopic
    from headrace_broker.protocol.errors import ErrorCode

    if re.search(r"[._]", options.topic):
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    if options.replication_factor is not None and not 1 <= options.replication_factor <= 32767:
        raise ToolError("The replication factor must be between 1 and 32767 inclusive")
    if options.partitions is not None and options.partitions < 1:
        raise ToolError("The partitions must be greater than 0")
    topic = NewTopic(
        options.topic,
        -1 if options.partitions is None else options.partitions,
        -1 if options.replication_factor is None else options.replication_factor,
        parse_configs(options.config),
        parse_assignment(options.replica_assignment) if options.replica_assignment else {},
    )
    error = (await admin.create_topics([topic]))[options.topic]
    if error is None:
        print(f"Created topic {options.topic}.")
    elif not (options.if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS):
        raise ToolError(broker_message(error))


async def _alter(admin: Admin, options: argparse.Namespace) -> None:
    names = await _existing(admin, options)
    if not names:
        return
    assignments = None
    if options.replica_assignment:
        assignment = parse_assignment(options.replica_assignment)
        views = await admin.describe_topics(names)
        assignments = {}
        for name in names:
            count = len(getattr(views[name], "partitions", ()))
            assignments[name] = [replicas for partition, replicas in assignment.items() if partition >= count]
    _raise_first(await admin.create_partitions(dict.fromkeys(names, options.partitions), assignments=assignments))


# -- describe --------------------------------------------------------------------------------------------------------


async def _describe(admin: Admin, options: argparse.Namespace) -> None:
    from headrace_broker.tools.topic_details import topic_descriptions

    if options.topic_id:
        names = [await _name_of_id(admin, options)] if options.topic_id != ZERO_ID else []
        names = [name for name in names if name and not (options.exclude_internal and name in INTERNAL_TOPICS)]
        if not names and not options.if_exists:
            raise ToolError(f"TopicId '{options.topic_id}' does not exist as expected")
    else:
        names = await _existing(admin, options)
    if not names:
        return
    report = Report(
        options.under_replicated_partitions,
        options.unavailable_partitions,
        options.under_min_isr_partitions,
        options.at_min_isr_partitions,
        options.topics_with_overrides,
    )
    live = {node.node_id for node in (await admin.describe_cluster()).nodes}
    limit = options.partition_size_limit_per_response or 2000
    for topic in await topic_descriptions(admin, names, partition_limit=limit):
        for line in describe(topic, report, live):
            print(line)


async def _name_of_id(admin: Admin, options: argparse.Namespace) -> str:
    from headrace_broker.client.cluster_view import TopicView
    from headrace_broker.protocol.uuid_text import encode_uuid

    for view in (await admin.describe_topics()).values():
        if isinstance(view, TopicView) and encode_uuid(view.topic_id) == options.topic_id:
            return view.name
    return ""


if __name__ == "__main__":
    entry()
