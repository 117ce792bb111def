"""`headrace cluster start | status | stop | start-node N | stop-node N`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_DEFAULT_DIR = Path("headrace-data/cluster")
_DIR = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULT_DIR,
    show_default=True,
    help="where the cluster keeps its files",
)


@click.group()
def cluster() -> None:
    """Run a local cluster of several brokers, and try what it survives."""


@cluster.command("start")
@click.option("--nodes", type=int, help="how many nodes, with ids 1..N (default: 3, or as many as there were)")
@_DIR
@click.option(
    "--base-port",
    type=int,
    help="node N serves clients on PORT+N-1 and controllers on PORT+1000+N-1 (default: 9092, or as it was)",
)
@click.option(
    "--property", "overrides", multiple=True, metavar="KEY=VALUE", help="set a key in every node's properties file"
)
def start(nodes: int | None, directory: Path, base_port: int | None, overrides: tuple[str, ...]) -> None:
    """Start a cluster, and stay in the foreground: Ctrl-C stops every node cleanly.

    Prints bootstrap.servers=... and `node N HOST:PORT pid P` as each node serves.  A directory that held a cluster
    before is taken up again.
    """
    from headrace.cli.cluster.running import run_cluster

    sys.exit(run_cluster(directory, nodes, base_port, overrides))


@cluster.command("status")
@_DIR
def status(directory: Path) -> None:
    """Show what the nodes of a running cluster do."""
    _ask(directory, "status")


@cluster.command("stop")
@_DIR
def stop(directory: Path) -> None:
    """Stop a running cluster; returns when every node has ended."""
    _ask(directory, "stop")


@cluster.command("start-node")
@click.argument("node", type=int)
@_DIR
@click.option("--format", "formats", is_flag=True, help="format its data directories if they have been emptied")
def start_node(node: int, directory: Path, formats: bool) -> None:
    """Start a node that was stopped or has died; returns when it serves.

    A node whose data is gone is refused: it has forgotten its votes, too. With --format it begins anew and fetches
    everything from the others, at least half of which have to serve.
    """
    _ask(directory, "start-node --format" if formats else "start-node", node)


@cluster.command("stop-node")
@click.argument("node", type=int)
@_DIR
def stop_node(node: int, directory: Path) -> None:
    """Stop a node in order (controlled shutdown); returns when it has ended."""
    _ask(directory, "stop-node", node)


def _ask(directory: Path, command: str, node: int | None = None) -> None:
    from headrace.cli.cluster.control import ask
    from headrace.cli.cluster.layout import ClusterError

    try:
        lines = ask(directory, command, node)
    except ClusterError as error:
        click.echo(f"headrace cluster: {error}", err=True)
        sys.exit(1)
    for line in lines:
        click.echo(line)
