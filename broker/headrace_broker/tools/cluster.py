"""kafka-cluster: show the cluster's id and its nodes, and unregister brokers (Kafka's ClusterTool)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_broker.tools.command_line import (
    Parser,
    admin_client,
    run,
    run_and_exit,
    uses_controllers,
    warn_deprecated,
)

if TYPE_CHECKING:
    from headrace_broker.client.admin import ClusterDescription

_COMMANDS = ("cluster-id", "unregister", "list-endpoints")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-cluster", "Show a cluster's id and nodes, or unregister a broker.")
    parser.add_argument("command", metavar="|".join(_COMMANDS), help="The command to run.")
    parser.add_bootstrap_server("-b")
    parser.add_bootstrap_controller("-C")
    parser.add_command_config("-c", "--config")
    parser.add_argument(
        "-i", "--id", type=int, dest="broker_id", metavar="ID", help="unregister: the broker to unregister."
    )
    parser.add_argument(
        "--include-fenced-brokers", action="store_true", help="list-endpoints: also show fenced brokers."
    )
    options = parser.parse(argv)
    warn_deprecated(options, argv, {"--config": "--command-config"})
    if options.command not in _COMMANDS:
        parser.error(f"invalid choice: '{options.command}' (choose from {', '.join(_COMMANDS)})")
    parser.required_server(options)
    if options.command == "unregister" and options.broker_id is None:
        parser.error("argument -i/--id is required")
    if options.include_fenced_brokers and uses_controllers(options):
        parser.error("The option --include-fenced-brokers is only supported with --bootstrap-server option")
    return run(_run_action(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


async def _run_action(options: argparse.Namespace) -> int:
    async with admin_client(options) as admin:
        if options.command == "unregister":
            await admin.unregister_broker(options.broker_id)
            print(f"Broker {options.broker_id} is no longer registered.")
            return 0
        description = await admin.describe_cluster(include_fenced=options.include_fenced_brokers)
    if options.command == "cluster-id":
        print(f"Cluster ID: {description.cluster_id}")
        return 0
    kind = "controller" if uses_controllers(options) else "broker"
    for line in endpoints(description, kind, shows_state=not uses_controllers(options)):
        print(line)
    return 0


def endpoints(description: ClusterDescription, kind: str, *, shows_state: bool) -> list[str]:
    """Return the output lines of list-endpoints; the columns are as wide as the longest host and rack.

    `kind` is the value of the column ENDPOINT_TYPE. If `shows_state` is set, the column STATE contains `fenced` or
    `unfenced`.
    """
    rows = [("ID", "HOST", "PORT", "RACK", *(("STATE",) if shows_state else ()), "ENDPOINT_TYPE")]
    for node in sorted(description.nodes, key=lambda node: node.node_id):
        state = "fenced" if node.node_id in description.fenced else "unfenced"
        name, rack = str(node.node_id), node.rack or "null"
        rows.append((name, node.host, str(node.port), rack, *((state,) if shows_state else ()), kind))
    hosts, racks = (max(len(row[column]) for row in rows) for column in (1, 3))
    widths = (10, max(hosts, 9), 10, max(racks, 10), *((10,) if shows_state else ()), 15)
    return [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


if __name__ == "__main__":
    entry()
