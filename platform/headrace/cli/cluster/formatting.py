"""Formats the data directories of nodes, and detects data loss.

A node's directories are formatted once, when its cluster is created. If a directory is unformatted at a later start,
its data was lost. A voter without its data no longer knows its votes and the metadata records that it acknowledged. If
too few other voters are available, the vote of such a voter could elect a leader that lacks committed records.
Therefore a node without its data starts only with `start-node --format`, and only if enough other nodes serve requests.
These nodes must together have all committed records.
"""

from __future__ import annotations

import shlex

from headrace.cli.cluster.layout import ClusterError, ClusterLayout


def format_node(layout: ClusterLayout, node_id: int) -> None:
    """Format those directories of a node that are not formatted yet. Raises ClusterError, OSError."""
    from headrace_broker.server.config import ConfigError
    from headrace_broker.server.data_dirs import StartError
    from headrace_broker.server.main import format_storage, load_properties

    try:
        format_storage(load_properties(str(layout.node_file(node_id))), layout.cluster_id)
    except (ConfigError, StartError) as error:
        raise ClusterError(f"node {node_id} cannot be formatted: {error}") from None


def describe_data_loss(layout: ClusterLayout, node_id: int) -> str | None:
    """Return an error message if the node's metadata directory is no longer formatted, otherwise None."""
    from headrace_broker.server.config import BrokerConfig, ConfigError
    from headrace_broker.server.data_dirs import is_formatted
    from headrace_broker.server.main import load_properties

    try:
        path = BrokerConfig.from_properties(load_properties(str(layout.node_file(node_id)))).metadata_dir
    except (ConfigError, OSError):
        return None  # the node reports the invalid or unreadable file when it starts
    if is_formatted(path):
        return None
    return (
        f"{path} is not formatted: its data is lost, including the node's votes in the quorum. "
        f"{_recovery_hint(layout, node_id)}"
    )


def _recovery_hint(layout: ClusterLayout, node_id: int) -> str:
    directory = shlex.quote(str(layout.directory))
    if layout.nodes == 1:
        return "Restore it, or start another cluster in another --dir"
    command = f"headrace cluster start-node {node_id} --format --dir {directory}"
    if layout.nodes == 2:  # a single remaining node never serves, so there is no supervisor to send a command to
        command = f"kafka-storage format -t {layout.cluster_id} -c {shlex.quote(str(layout.node_file(node_id)))}"
    return f"Restore it, or start the node with an empty directory to fetch all data from the other nodes: {command}"


def check_enough_other_nodes(layout: ClusterLayout, node_id: int, serving: int) -> None:
    """Check that formatting this node cannot lose committed records. Raises ClusterError if too few other nodes serve.

    `serving` is the number of other nodes that serve requests. A committed record is stored on a majority of the nodes,
    which may include this node. If `serving` is at least half the number of all nodes (rounded up), every majority
    contains one of the serving nodes, so together the serving nodes have all committed records.
    """
    needed = (layout.nodes + 1) // 2
    if serving < needed:
        raise ClusterError(
            f"node {node_id} cannot be formatted, because the other nodes may lack committed records: at least "
            f"{needed} of the {layout.nodes - 1} other nodes must serve requests (currently: {serving})"
        )
