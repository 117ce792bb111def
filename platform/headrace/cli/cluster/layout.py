"""The directory layout of a local cluster, and the properties of its nodes.

    DIR/cluster.properties            cluster id, number of nodes, base port and directory of the cluster
    DIR/node-N/server.properties      configuration of node N, as for `kafka-server-start`; user edits are kept
    DIR/node-N/data/                  topic logs and metadata log of node N
    DIR/node-N/server.log             output of node N
    DIR/control.sock                  socket for commands to the running supervisor

Until the cluster is completely created, the file ``cluster.properties`` has the name ``cluster.properties.new``.

Node N listens for clients on port BASE_PORT+N-1 and for other controllers on port BASE_PORT+1000+N-1, both on the
loopback address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
CONTROLLER_PORT_OFFSET = 1000
DEFAULT_NODES = 3
DEFAULT_BASE_PORT = 9092
LOCK_FILE = "cluster.lock"
SOCKET_FILE = "control.sock"
_CLUSTER_FILE = "cluster.properties"
_UNFINISHED_FILE = _CLUSTER_FILE + ".new"
_PORT_MAX = 65535


class ClusterError(Exception):
    """A command on a local cluster failed. The message is one line with the reason and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The properties of a local cluster: its directory, number of nodes, ports and id."""

    directory: Path
    nodes: int
    base_port: int
    cluster_id: str
    original_directory: str = ""
    """The cluster's directory when the nodes' files were written; empty if unknown."""

    @property
    def node_ids(self) -> range:
        """The node ids 1..N."""
        return range(1, self.nodes + 1)

    def port(self, node_id: int) -> int:
        """Return the port on which the node listens for clients."""
        return self.base_port + node_id - 1

    def controller_port(self, node_id: int) -> int:
        """Return the port on which the node's controller listens."""
        return self.port(node_id) + CONTROLLER_PORT_OFFSET

    def address(self, node_id: int) -> str:
        """Return the HOST:PORT on which the node listens for clients."""
        return f"{HOST}:{self.port(node_id)}"

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, in the format of the client key bootstrap.servers."""
        return ",".join(self.address(node_id) for node_id in self.node_ids)

    def node_dir(self, node_id: int) -> Path:
        """Return the directory of a node."""
        return self.directory / f"node-{node_id}"

    def node_file(self, node_id: int) -> Path:
        """Return the path of the node's properties file."""
        return self.node_dir(node_id) / "server.properties"

    def node_log(self, node_id: int) -> Path:
        """Return the path of the file to which the node's output is written."""
        return self.node_dir(node_id) / "server.log"

    def node_properties(self, node_id: int) -> dict[str, str]:
        """Return the initial properties of a node.

        They contain its id, its addresses, and replication settings that tolerate the failure of one node.
        """
        voters = ",".join(f"{voter}@{HOST}:{self.controller_port(voter)}" for voter in self.node_ids)
        replicas = min(3, self.nodes)
        return {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{self.address(node_id)},CONTROLLER://{HOST}:{self.controller_port(node_id)}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": str(self.node_dir(node_id).absolute() / "data"),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            "offsets.topic.replication.factor": str(replicas),
            "group.initial.rebalance.delay.ms": "0",
        }


def open_layout(directory: Path, nodes: int | None, base_port: int | None, new_cluster_id: str) -> ClusterLayout:
    """Return the layout of the cluster in the directory, or of a new cluster if the directory is empty.

    If `nodes` or `base_port` is None, the existing cluster's value or the default applies. If the creation of the
    cluster was interrupted earlier, the caller must complete it. Raises ClusterError.
    """
    known = read_layout(directory) or _read(directory / _UNFINISHED_FILE)
    if known is None:
        size = DEFAULT_NODES if nodes is None else nodes
        layout = ClusterLayout(directory, size, DEFAULT_BASE_PORT if base_port is None else base_port, new_cluster_id)
        _check_empty(directory)
        _check_ports(layout)
        return layout
    for name, requested, current in (("--nodes", nodes, known.nodes), ("--base-port", base_port, known.base_port)):
        if requested is not None and requested != current:
            raise ClusterError(
                f"{directory} contains a cluster with {name} {current}, not {requested}: omit {name}, "
                "or use another directory"
            )
    _check_ports(known)
    return known


def read_layout(directory: Path) -> ClusterLayout | None:
    """Return the layout of the cluster in the directory, or None if there is no cluster. Raises ClusterError."""
    return _read(directory / _CLUSTER_FILE)


def _read(path: Path) -> ClusterLayout | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    original_directory = values.get("directory", "")
    try:
        return ClusterLayout(
            path.parent, int(values["nodes"]), int(values["base.port"]), values["cluster.id"], original_directory
        )
    except (KeyError, ValueError):
        raise ClusterError(
            f"{path} lacks a valid value of nodes, base.port or cluster.id: restore the file, or use another directory"
        ) from None


def _check_empty(directory: Path) -> None:
    try:
        ignored = (LOCK_FILE, SOCKET_FILE)  # a failed start may have left these files in the directory
        names = sorted(
            item.name for item in directory.iterdir() if not item.name.startswith(".") and item.name not in ignored
        )
    except FileNotFoundError:
        return
    except OSError as error:
        raise ClusterError(f"cannot read directory {directory}: {error.strerror}") from None
    if names:
        raise ClusterError(
            f"{directory} contains files that do not belong to a cluster ({names[0]}, ...): use a new or an empty "
            "directory"
        )


def _check_ports(layout: ClusterLayout) -> None:
    last = layout.controller_port(layout.nodes)
    if layout.nodes < 1 or layout.nodes > CONTROLLER_PORT_OFFSET:
        raise ClusterError(f"--nodes {layout.nodes}: expected 1..{CONTROLLER_PORT_OFFSET}")
    if layout.base_port < 1 or last > _PORT_MAX:
        highest = _PORT_MAX - CONTROLLER_PORT_OFFSET - layout.nodes + 1
        raise ClusterError(f"--base-port {layout.base_port}: expected 1..{highest}")


def write_node_files(layout: ClusterLayout, overrides: Mapping[str, str]) -> None:
    """Write the missing properties files of nodes, and set the overrides in every node's file. Raises OSError.

    If the cluster's directory was moved or copied, replace the old directory by the new directory in all paths.
    """
    current = str(layout.directory.absolute())
    for node_id in layout.node_ids:
        layout.node_dir(node_id).mkdir(parents=True, exist_ok=True)
        path = layout.node_file(node_id)
        before = path.read_text(encoding="latin-1") if path.exists() else ""
        suffix = f"/node-{node_id}/"
        moved = before
        if layout.original_directory:
            moved = before.replace(_escaped(layout.original_directory) + suffix, _escaped(current) + suffix)
        after = set_values(moved or _node_file(layout, node_id), overrides)
        if after != before:
            _replace(path, after, "latin-1")


def write_cluster_file(layout: ClusterLayout) -> None:
    """Write the cluster's properties file, which marks the creation of the cluster as complete. Raises OSError."""
    write_unfinished_file(layout)
    (layout.directory / _UNFINISHED_FILE).replace(layout.directory / _CLUSTER_FILE)


def write_unfinished_file(layout: ClusterLayout) -> None:
    """Write the properties of a new cluster to a file that marks the creation as unfinished. Raises OSError."""
    values = {
        "cluster.id": layout.cluster_id,
        "nodes": layout.nodes,
        "base.port": layout.base_port,
        "directory": layout.directory.absolute(),
    }
    lines = ["# Written by `headrace cluster start`.", *(f"{key}={value}" for key, value in values.items())]
    text = "".join(f"{line}\n" for line in lines)
    _replace(layout.directory / _UNFINISHED_FILE, text, "utf-8")


def _replace(path: Path, text: str, encoding: str) -> None:
    """Replace a file atomically: if the disk is full, the old file stays in place."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding=encoding)
    temporary.replace(path)


def _node_file(layout: ClusterLayout, node_id: int) -> str:
    title = f"# Node {node_id} of {layout.nodes}: written by `headrace cluster start`, which keeps your changes.\n"
    return set_values(title, layout.node_properties(node_id))


def set_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a properties file with these values set.

    The value of an existing key is changed in the key's line. A new key is added at the end.
    """
    lines = text.splitlines()
    for key, value in values.items():
        kept = [line for line in lines if _key_of(line) != key]
        position = next((index for index, line in enumerate(lines) if _key_of(line) == key), len(kept))
        kept.insert(position, f"{key}={_escaped(value)}")
        lines = kept
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: str) -> str:
    """Escape a value for a properties file.

    ``\\`` becomes two backslashes, and a non-ASCII character becomes ``\\uXXXX``.
    """

    def escape(character: str) -> str:
        if character == "\\":
            return "\\\\"
        if " " <= character <= "~":
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return "".join(map(escape, value))


def _key_of(line: str) -> str:
    return "" if line.lstrip().startswith(("#", "!")) else line.partition("=")[0].strip()
