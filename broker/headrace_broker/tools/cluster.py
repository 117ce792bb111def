"""kafka-cluster: the cluster's id, and forgetting brokers that are gone (Kafka's ClusterTool)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from headrace_broker.tools.command_line import Parser, admin_client, client_properties, leave, run

_COMMANDS = ("cluster-id", "unregister")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-cluster", "Show and change what a cluster consists of.")
    parser.add_argument("command", metavar="|".join(_COMMANDS), help="What to do.")
    parser.add_bootstrap_server("-b")
    parser.add_command_config("-c", "--config")
    parser.add_argument(
        "-i", "--id", type=int, dest="broker_id", metavar="ID", help="unregister: the broker to forget."
    )
    options = parser.parse(argv)
    if options.command not in _COMMANDS:
        parser.error(f"invalid choice: '{options.command}' (choose from {', '.join(_COMMANDS)})")
    parser.required_server(options)
    if options.command == "unregister" and options.broker_id is None:
        parser.error("argument -i/--id is required")
    return run(_act(options))


def entry() -> None:
    """The console script."""
    leave(main)


async def _act(options: argparse.Namespace) -> int:
    async with admin_client(client_properties(options)) as admin:
        if options.command == "unregister":
            await admin.unregister_broker(options.broker_id)
            print(f"Broker {options.broker_id} is no longer registered.")
            return 0
        description = await admin.describe_cluster()
    print(f"Cluster ID: {description.cluster_id}")
    return 0


if __name__ == "__main__":
    entry()
