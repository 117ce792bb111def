"""kafka-log-dirs: show the contents of the brokers' log directories as one line of JSON (Kafka's LogDirsCommand)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.tools.command_line import Parser, admin_client, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.describe_log_dirs import DescribeLogDirsResult

_JAVA_ERRORS = "org.apache.kafka.common.errors."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-log-dirs", "Show the contents of the brokers' log directories.")
    parser.add_bootstrap_server(None)
    parser.add_command_config()
    parser.add_argument("--describe", action="store_true", help="REQUIRED: show the log directories.")
    parser.add_argument("--topic-list", default="", metavar="T,T,…", help="Only partitions of these topics.")
    parser.add_argument("--broker-list", default="", metavar="0,1,…", help="Only these brokers.")
    options = parser.parse(argv)
    parser.required_server(options)
    parser.require(options, "describe")
    return run(_describe(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


async def _describe(options: argparse.Namespace) -> int:
    try:
        requested = sorted({int(item) for item in options.broker_list.split(",") if item})
    except ValueError:
        raise ToolError(f"--broker-list {options.broker_list}: expected broker ids, separated by commas") from None
    topics = {item for item in options.topic_list.split(",") if item}
    async with admin_client(options) as admin:
        existing = sorted(node.node_id for node in (await admin.describe_cluster()).nodes)
        missing = [broker for broker in requested if broker not in existing]
        if missing:
            raise ToolError(
                f"ERROR: The given brokers do not exist from --broker-list: {_joined(missing)}. "
                f"Current existent brokers: {_joined(existing)}"
            )
        brokers = requested or existing
        print("Querying brokers for log directories information")
        found = await admin.describe_log_dirs(brokers)
    print(f"Received log directory information from brokers {_joined(brokers)}")
    print(json.dumps(as_json(found, topics), separators=(",", ":"), ensure_ascii=False))
    return 0


def as_json(found: Mapping[int, Sequence[DescribeLogDirsResult]], topics: Collection[str]) -> dict[str, Any]:
    """Return the JSON object to print for the log directories in `found`, which maps broker ids to log directories.

    If `topics` is not empty, other topics are omitted. The fields are in the same order as in the output of Kafka's
    tool.
    """
    brokers = [
        {"broker": broker, "logDirs": [_directory(item, topics) for item in directories]}
        for broker, directories in found.items()
    ]
    return {"brokers": brokers, "version": 1}


def _directory(item: DescribeLogDirsResult, topics: Collection[str]) -> dict[str, Any]:
    partitions = [
        {
            "partition": f"{topic.name}-{part.partition_index}",
            "size": part.partition_size,
            "offsetLag": part.offset_lag,
            "isFuture": part.is_future_key,
        }
        for topic in item.topics
        if not topics or topic.name in topics
        for part in topic.partitions
    ]
    return {"partitions": partitions, "error": _error_class(item.error_code), "logDir": item.log_dir}


def _error_class(code: int) -> str | None:
    from headrace_broker.protocol.errors import ErrorCode

    if code == ErrorCode.NONE:
        return None
    words = ErrorCode.from_code(code).name.lower().split("_")
    name = "".join(word.capitalize() for word in words).removesuffix("Error")
    return f"{_JAVA_ERRORS}{name}Exception"


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


if __name__ == "__main__":
    entry()
