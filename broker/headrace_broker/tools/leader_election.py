"""kafka-leader-election: trigger preferred or unclean leader elections (Kafka's LeaderElectionCommand)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import json_files
from headrace_broker.tools.command_line import Parser, admin_client, broker_message, is_given, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError

_TYPES = ("preferred", "unclean")
_CHOICES = ("topic", "all_topic_partitions", "path_to_json_file")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    _check(parser, options)
    return run(_elect(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-leader-election", "Elect new leaders for partitions.")
    parser.add_bootstrap_server()
    parser.add_command_config("--admin.config")
    add = parser.add_argument
    add("--election-type", metavar="TYPE", help="REQUIRED: preferred, or unclean (any live replica).")
    add("--topic", help="The topic; requires --partition.")
    add("--partition", type=int, metavar="N", help="The partition of --topic.")
    add("--all-topic-partitions", action="store_true", help="All partitions that are eligible for the election.")
    add("--path-to-json-file", metavar="FILE", help='{"partitions": [{"topic": "foo", "partition": 1}]}')
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> None:
    missing = [name for name in ("bootstrap_server", "election_type") if not is_given(options, name)]
    if missing:
        parser.error(f"Missing required option(s): {', '.join(name.replace('_', '-') for name in missing)}")
    parser.required_server(options)
    if options.election_type.lower() not in _TYPES:
        parser.error(f"--election-type {options.election_type}: expected {' or '.join(_TYPES)}")
    if sum(is_given(options, name) for name in _CHOICES) != 1:
        names = ", ".join(name.replace("_", "-") for name in _CHOICES)
        parser.error(f"One and only one of the following options is required: {names}")
    if is_given(options, "topic") and not is_given(options, "partition"):
        parser.error("Missing required option(s): partition")
    if is_given(options, "partition") and not is_given(options, "topic"):
        parser.error("Option partition is only allowed if topic is used")


def read_partitions(path: str) -> list[TopicPartition]:
    """Return the partitions in the file of --path-to-json-file. Raises ToolError."""
    data = json_files.read_json(path)
    if "partitions" not in data:
        raise ToolError('Replica election data is missing "partitions" field')
    partitions = [json_files.topic_partition(item) for item in json_files.entries(data, "partitions")]
    duplicates = [item for item in dict.fromkeys(partitions) if partitions.count(item) > 1]
    if duplicates:
        raise ToolError(
            f"Replica election data contains duplicate partitions: {', '.join(json_files.names(duplicates))}"
        )
    return partitions


async def _elect(options: argparse.Namespace) -> int:
    from headrace_broker.protocol.errors import ErrorCode

    partitions: list[TopicPartition] | None = None
    if options.path_to_json_file:
        partitions = read_partitions(options.path_to_json_file)
    elif options.topic:
        partitions = [(options.topic, options.partition)]
    kind = options.election_type.lower()
    async with admin_client(options) as admin:
        results = await admin.elect_leaders(_TYPES.index(kind), partitions)
    not_needed = ErrorCode.ELECTION_NOT_NEEDED
    elected = [item for item, error in results.items() if error is None]
    unneeded = [item for item, error in results.items() if error is not None and error.code == not_needed]
    failed = {item: error for item, error in results.items() if error is not None and error.code != not_needed}
    if elected:
        names = ", ".join(json_files.names(elected))
        print(f"Successfully completed leader election ({kind.upper()}) for partitions {names}")
    if unneeded:
        print(f"Valid replica already elected for partitions {', '.join(json_files.names(unneeded))}")
    for (topic, index), error in failed.items():
        print(
            f"Error completing leader election ({kind.upper()}) for partition: {topic}-{index}: {broker_message(error)}"
        )
    if failed:
        raise ToolError(f"{len(failed)} replica(s) could not be elected")
    return 0


if __name__ == "__main__":
    entry()
