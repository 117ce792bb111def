"""A node's data directories are formatted once, when its cluster is made: one found without is a loss.

A voter whose disk is gone has forgotten its votes, and what it had confirmed: with too few others it could help to
elect a leader that lacks what was committed.  So it starts only when somebody says so and the others have everything.
"""

from __future__ import annotations

import shlex

from headrace.cli.cluster.layout import ClusterError, Layout


def format_node(layout: Layout, node_id: int) -> None:
    """Format the node's directories that are not formatted yet.  Raises ClusterError, OSError."""
    from headrace_broker.server.config import ConfigError
    from headrace_broker.server.data_dirs import StartError
    from headrace_broker.server.main import format_storage, load_properties

    try:
        format_storage(load_properties(str(layout.node_file(node_id))), layout.cluster_id)
    except (ConfigError, StartError) as error:
        raise ClusterError(f"node {node_id} cannot be formatted: {error}") from None


def loss(layout: Layout, node_id: int) -> str | None:
    """What is to be said of a node whose metadata directory is not formatted; None when it is."""
    from headrace_broker.server.config import BrokerConfig, ConfigError
    from headrace_broker.server.data_dirs import is_formatted
    from headrace_broker.server.main import load_properties

    try:
        path = BrokerConfig.from_properties(load_properties(str(layout.node_file(node_id)))).metadata_dir
    except (ConfigError, OSError):
        return None  # which the node says itself
    if is_formatted(path):
        return None
    return (
        f"{path} is not formatted: what it held is gone, the node's votes in the quorum too. {_remedy(layout, node_id)}"
    )


def _remedy(layout: Layout, node_id: int) -> str:
    directory = shlex.quote(str(layout.directory))
    if layout.nodes == 1:
        return "Put it back, or start another cluster in another --dir"
    anew = f"headrace cluster start-node {node_id} --format --dir {directory}"
    if layout.nodes == 2:  # a single node that is left never serves, so no supervisor stays to be asked
        anew = f"kafka-storage format -t {layout.cluster_id} -c {shlex.quote(str(layout.node_file(node_id)))}"
    return f"Put it back, or have the node begin anew with what the others hold: {anew}"


def check_others_have_everything(layout: Layout, node_id: int, serving: int) -> None:
    """Raises ClusterError when a node that begins anew could make the cluster forget: too few others serve.

    What is committed is on a majority of all nodes, this one perhaps among them.  Any majority that it forms with
    others has that from one of them if half of all nodes, rounded up, are others that serve.
    """
    needed = (layout.nodes + 1) // 2
    if serving < needed:
        raise ClusterError(
            f"node {node_id} cannot begin anew, what it has forgotten may be on no other: {needed} of the "
            f"{layout.nodes - 1} others have to serve first, and {serving} do"
        )
