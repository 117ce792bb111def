"""Formats the data directories of nodes, and detects data loss.

A node's directories are formatted once, when its cluster is created; an unformatted directory later means data loss. A
voter that lost its data has lost its votes and the metadata records that it acknowledged: if too few other voters are
available, its vote could elect a leader that lacks committed records. Therefore such a node starts only with
`start-node --format`, and only if the other nodes have all committed records.
"""

from __future__ import annotations

import shlex

from headrace.cli.cluster.layout import ClusterError, ClusterLayout


def format_node(layout: ClusterLayout, node_id: int) -> None:
    """Format the directories of a node that are not formatted yet.  Raises ClusterError, OSError."""
    from headrace_broker.server.config import ConfigError
    from headrace_broker.server.data_dirs import StartError
    from headrace_broker.server.main import format_storage, load_properties

    try:
        format_storage(load_properties(str(layout.node_file(node_id))), layout.cluster_id)
    except (ConfigError, StartError) as error:
        raise ClusterError(f"node {node_id} cannot be formatted: {error}") from None


def describe_data_loss(layout: ClusterLayout, node_id: int) -> str | None:
    """Return the error message for a node whose metadata directory is not formatted; None if it is formatted."""
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
    return f"Restore it, or start the node with an empty directory to fetch all data from the others: {command}"


def check_enough_other_nodes(layout: ClusterLayout, node_id: int, serving: int) -> None:
    """Raises ClusterError if too few other nodes serve, so that reformatting this node could lose committed records.

    A committed record is stored on a majority of all nodes, and this node may be one of them.  If at least half of all
    nodes, rounded up, are other nodes that serve, each majority contains at least one of these serving nodes, so every
    committed record is on a serving node.
    """
    needed = (layout.nodes + 1) // 2
    if serving < needed:
        raise ClusterError(
            f"node {node_id} cannot be reformatted, its committed records may be on no other node: {needed} of the "
            f"{layout.nodes - 1} other nodes must serve first, but only {serving} do"
        )
