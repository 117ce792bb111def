"""kafka-broker-api-versions: show the API versions that each broker supports."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace_broker.tools.command_line import Parser, admin_client, run, run_and_exit

if TYPE_CHECKING:
    from headrace_broker.client.cluster_view import Node

_CONTROLLER_APIS = frozenset((52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82))
"""APIs that only controllers support; the tool does not list them as UNSUPPORTED for a broker."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-broker-api-versions", "Show the API versions that the brokers support.")
    parser.add_bootstrap_server()
    parser.add_command_config()
    options = parser.parse(argv)
    parser.required_server(options)
    return run(_print_versions(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


async def _print_versions(options: argparse.Namespace) -> int:
    from headrace_broker.client.errors import ClientError

    status = 0
    async with admin_client(options) as admin:
        cluster = await admin.describe_cluster()
        for node in cluster.nodes:
            try:
                text = versions_text(await admin.api_versions(node.node_id))
            except ClientError as error:
                text, status = f"ERROR: {error}", 1
            print(f"{node_text(node)} -> {text}")
    return status


def node_text(node: Node) -> str:
    """Format a broker like Java's Node.toString."""
    return f"{node.host}:{node.port} (id: {node.node_id} rack: {node.rack or 'null'} isFenced: false)"


def versions_text(offered: Mapping[int, tuple[int, int]]) -> str:
    """Format one broker's API versions, {API key: (first, last version)}, as a block of lines."""
    from headrace_broker.protocol.apis import API

    lines = {key: _api_text(key, *versions) for key, versions in offered.items()}
    for key, api in API.items():
        if key not in lines and key not in _CONTROLLER_APIS:
            lines[key] = f"{api.name}({int(key)}): UNSUPPORTED"
    return "(\n\t" + ",\n\t".join(lines[key] for key in sorted(lines)) + "\n)"


def _api_text(key: int, first: int, last: int) -> str:
    from headrace_broker.protocol.apis import API

    api = API.get(key)
    name = api.name if api is not None else "UNKNOWN"
    text = f"{name}({int(key)}): {first}" + (f" to {last}" if last != first else "")
    if api is None:
        return text
    if api.max_version < first:
        return f"{text} [unusable: node too new]"
    if last < api.min_version:
        return f"{text} [unusable: node too old]"
    return f"{text} [usable: {min(api.max_version, last)}]"


if __name__ == "__main__":
    entry()
