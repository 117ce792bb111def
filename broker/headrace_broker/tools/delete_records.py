"""kafka-delete-records: delete a partition's records before an offset (Kafka's DeleteRecordsCommand)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import json_files
from headrace_broker.tools.command_line import Parser, admin_client, broker_message, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-delete-records", "Delete records of partitions below given offsets.")
    parser.add_bootstrap_server()
    parser.add_command_config()
    parser.add_argument(
        "--offset-json-file",
        metavar="FILE",
        help='REQUIRED: {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}]}; -1 = all records.',
    )
    options = parser.parse(argv)
    parser.required_server(options)
    parser.require(options, "offset_json_file")
    return run(_delete(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Read {partition: offset} from the JSON file. Raises ToolError."""
    offsets: dict[TopicPartition, int] = {}
    duplicates: list[TopicPartition] = []
    for item in json_files.entries(json_files.read_json(path), "partitions"):
        partition = json_files.topic_partition(item)
        if partition in offsets:
            duplicates.append(partition)
        offsets[partition] = json_files.value(item, "offset", int)
    if duplicates:
        names = ",".join(json_files.names(duplicates))
        raise ToolError(f"Offset json file contains duplicate topic partitions: {names}")
    return offsets


async def _delete(options: argparse.Namespace) -> int:
    from headrace_broker.client.errors import BrokerError, ClientError
    from headrace_broker.protocol.errors import ErrorCode

    offsets = read_offsets(options.offset_json_file)
    async with admin_client(options) as admin:
        print("Executing records delete operation")
        existing = await _existing_partitions(admin, offsets)
        results: dict[TopicPartition, int | ClientError] = {}
        # send one request per partition, so that an error affects only one partition
        for partition, offset in offsets.items():
            if partition not in existing:
                results[partition] = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition")
                continue
            try:
                results |= await admin.delete_records({partition: offset})
            except ClientError as error:
                results[partition] = error
        print("Records delete operation completed:")
    for (topic, index), result in results.items():
        if isinstance(result, int):
            print(f"partition: {topic}-{index}\tlow_watermark: {result}")
        else:
            message = broker_message(result) if isinstance(result, BrokerError) else str(result)
            print(f"partition: {topic}-{index}\terror: {message}")
    sys.stdout.flush()
    return 0


async def _existing_partitions(admin: Admin, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    from headrace_broker.client.errors import BrokerError

    topics = await admin.describe_topics(sorted({topic for topic, _ in offsets}))
    return {
        (name, view.partition)
        for name, topic in topics.items()
        if not isinstance(topic, BrokerError)
        for view in topic.partitions
    }


if __name__ == "__main__":
    entry()
