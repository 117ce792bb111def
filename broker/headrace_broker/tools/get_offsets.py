"""kafka-get-offsets: print the offsets of partitions as lines `topic:partition:offset` (Kafka's GetOffsetShell)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from headrace_broker.protocol.topic_names import INTERNAL_TOPICS
from headrace_broker.tools.command_line import Parser, admin_client, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError
from headrace_broker.tools.topic_filter import topic_and_partitions_filter, topic_partition_filter

_NAMED_TIMES = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    parser.required_server(options)
    return run(_print_offsets(options), on_error=lambda text: print(f"Error occurred: {text}", file=sys.stderr))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-get-offsets", "Show the offsets of partitions.")
    parser.add_bootstrap_server()
    parser.add_command_config()
    add = parser.add_argument
    add("--topic", help="The topic, or a regular expression. Default, without --topic-partitions: all topics.")
    add("--partitions", help="Comma separated partition ids. Default: all partitions.")
    add(
        "--topic-partitions",
        metavar="T:0,T:1-4,T:5-,…",
        help="Comma separated topic-partition patterns: a regular expression for topics (empty = all), then after a "
        "colon a partition, FROM-TO (TO excluded), FROM- or -TO.",
    )
    add(
        "--time",
        default="latest",
        help="A timestamp in ms, for the first offset at or after it; or -1 or latest / -2 or earliest / -3 or "
        "max-timestamp / -4 or earliest-local / -5 or latest-tiered / -6 or earliest-pending-upload. Default: latest.",
    )
    add("--exclude-internal-topics", action="store_true", help="Exclude internal topics.")
    return parser


def parse_time(text: str) -> int:
    """Return the ListOffsets timestamp for the value of --time. Raises ToolError."""
    try:
        return _NAMED_TIMES[text] if text in _NAMED_TIMES else int(text)
    except ValueError:
        names = " / ".join(f"{number} or {name}" for name, number in _NAMED_TIMES.items())
        raise ToolError(
            f"Malformed time argument {text}. Please use {names}, or a specified long format timestamp"
        ) from None


async def _print_offsets(options: argparse.Namespace) -> int:
    from headrace_broker.client.admin import values_or_raise
    from headrace_broker.client.errors import BrokerError, ClientError

    if options.topic_partitions and (options.topic or options.partitions):
        raise ToolError("--topic-partitions cannot be used with --topic or --partitions")
    timestamp = parse_time(options.time)
    if options.topic_partitions:
        is_wanted_topic, is_wanted = topic_partition_filter(options.topic_partitions)
    else:
        is_wanted_topic, is_wanted = topic_and_partitions_filter(options.topic, options.partitions)
    async with admin_client(options) as admin:
        names = await admin.list_topics(include_internal=True)
        if options.exclude_internal_topics:
            names = [name for name in names if name not in INTERNAL_TOPICS]
        topics = values_or_raise(await admin.describe_topics([name for name in names if is_wanted_topic(name)]))
        partitions = [(name, view.partition) for name, topic in topics.items() for view in topic.partitions]
        partitions = sorted((item for item in partitions if is_wanted(*item)), key=lambda item: f"{item[0]}-{item[1]}")
        if not partitions:
            raise ToolError("Could not match any topic-partitions with the specified filters")
        try:
            found = await admin.list_offsets(dict.fromkeys(partitions, timestamp))
        except ClientError as error:
            if not isinstance(error, BrokerError):
                raise
            found = {}
            for item in partitions:  # send one request per partition, so that an error affects only one partition
                try:
                    found |= await admin.list_offsets({item: timestamp})
                except ClientError as failure:
                    print(
                        f"Skip getting offsets for topic-partition {item[0]}-{item[1]} due to error: {failure}",
                        file=sys.stderr,
                    )
    for topic, partition in partitions:
        listed = found.get((topic, partition))
        if listed is not None and listed.offset >= 0:
            print(f"{topic}:{partition}:{listed.offset}")
    return 0


if __name__ == "__main__":
    entry()
