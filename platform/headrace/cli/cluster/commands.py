"""The commands `headrace cluster start | status | stop | start-node N | stop-node N`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headrace_broker.help_epilog import read_on

_DOCUMENTS = read_on("docs/examples.md", "docs/broker.md", "docs/reference/broker.md")
_DEFAULT_DIR = Path("headrace-data/cluster")
_DIR = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULT_DIR,
    show_default=True,
    help="the directory of the cluster",
)


@click.group(epilog=_DOCUMENTS)
def cluster() -> None:
    """Run a local cluster of several brokers, for example to test failures."""


@cluster.command("start", epilog=_DOCUMENTS)
@click.option(
    "--nodes", type=int, help="the number of nodes, with ids 1..N (default: 3, or that of the existing cluster)"
)
@_DIR
@click.option(
    "--base-port",
    type=int,
    help="node N serves clients on PORT+N-1 and controllers on PORT+1000+N-1 "
    "(default: 9092, or that of the existing cluster)",
)
@click.option(
    "--property", "overrides", multiple=True, metavar="KEY=VALUE", help="set a key in every node's properties file"
)
def start(nodes: int | None, directory: Path, base_port: int | None, overrides: tuple[str, ...]) -> None:
    """Start a cluster and stay in the foreground; Ctrl-C stops every node cleanly.

    Prints a line `bootstrap.servers=...`, and a line `node N HOST:PORT pid P` when node N starts to serve requests. If
    the directory contains a cluster, that cluster is started again.
    """
    from headrace.cli.cluster.running import run_cluster

    sys.exit(run_cluster(directory, nodes, base_port, overrides))


@cluster.command("status", epilog=_DOCUMENTS)
@_DIR
def status(directory: Path) -> None:
    """Show the state of every node of a running cluster."""
    _send(directory, "status")


@cluster.command("stop", epilog=_DOCUMENTS)
@_DIR
def stop(directory: Path) -> None:
    """Stop a running cluster, and wait until every node has exited."""
    _send(directory, "stop")


@cluster.command("start-node", epilog=_DOCUMENTS)
@click.argument("node", type=int)
@_DIR
@click.option("--format", "formats", is_flag=True, help="format its data directories if they are empty")
def start_node(node: int, directory: Path, formats: bool) -> None:
    """Start a node that was stopped or has died, and wait until it serves requests.

    A node that has lost its data directory is not started, because it has also lost its votes in the metadata quorum.
    With --format, such a node starts with an empty directory and fetches all data from the other nodes. This requires
    that enough other nodes serve: at least half the number of nodes in the cluster, rounded up.
    """
    _send(directory, "start-node --format" if formats else "start-node", node)


@cluster.command("stop-node", epilog=_DOCUMENTS)
@click.argument("node", type=int)
@_DIR
def stop_node(node: int, directory: Path) -> None:
    """Stop a node with a controlled shutdown, and wait until the node has exited."""
    _send(directory, "stop-node", node)


def _send(directory: Path, command: str, node: int | None = None) -> None:
    from headrace.cli.cluster.control import send_command
    from headrace.cli.cluster.layout import ClusterError

    try:
        lines = send_command(directory, command, node)
    except ClusterError as error:
        click.echo(f"headrace cluster: {error}", err=True)
        sys.exit(1)
    for line in lines:
        click.echo(line)
