"""Where a local cluster keeps what, and the properties its nodes are started with.

    DIR/cluster.properties            what the cluster is: its id, its size, its ports (.new: it is being made)
    DIR/node-N/server.properties      node N's file, as `kafka-server-start` reads it; edits are kept
    DIR/node-N/data/                  its logs, and its part of the metadata log
    DIR/node-N/server.log             what it printed
    DIR/control.sock                  where the running supervisor is asked

Node N serves clients on BASE_PORT+N-1 and controllers on BASE_PORT+1000+N-1, all on the loopback address.
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
    """The cluster cannot be had like that; one line that says what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One local cluster: how many nodes, on which ports, under which directory."""

    directory: Path
    nodes: int
    base_port: int
    cluster_id: str
    made_as: str = ""
    """The directory's name when the nodes' files were written; empty when that is not known."""

    @property
    def node_ids(self) -> range:
        """1..N."""
        return range(1, self.nodes + 1)

    def port(self, node_id: int) -> int:
        """Where the node serves clients."""
        return self.base_port + node_id - 1

    def controller_port(self, node_id: int) -> int:
        """Where the node serves the other nodes' controllers."""
        return self.port(node_id) + CONTROLLER_PORT_OFFSET

    def address(self, node_id: int) -> str:
        """HOST:PORT for clients."""
        return f"{HOST}:{self.port(node_id)}"

    @property
    def bootstrap_servers(self) -> str:
        """Every node's address, as clients take it."""
        return ",".join(self.address(node_id) for node_id in self.node_ids)

    def node_dir(self, node_id: int) -> Path:
        """What belongs to one node."""
        return self.directory / f"node-{node_id}"

    def node_file(self, node_id: int) -> Path:
        """The node's properties file."""
        return self.node_dir(node_id) / "server.properties"

    def node_log(self, node_id: int) -> Path:
        """What the node printed."""
        return self.node_dir(node_id) / "server.log"

    def node_properties(self, node_id: int) -> dict[str, str]:
        """What a node is started with: its place in the cluster, and defaults that keep records through its loss."""
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


def open_layout(directory: Path, nodes: int | None, base_port: int | None, new_cluster_id: str) -> Layout:
    """The cluster in the directory, or a new one of this size if it is empty.  Raises ClusterError.

    One that a start was interrupted in making is gone on with.
    """
    known = read_layout(directory) or _read(directory / _UNFINISHED_FILE)
    if known is None:
        size = DEFAULT_NODES if nodes is None else nodes
        layout = Layout(directory, size, DEFAULT_BASE_PORT if base_port is None else base_port, new_cluster_id)
        _check_empty(directory)
        _check_ports(layout)
        return layout
    for name, wanted, there in (("--nodes", nodes, known.nodes), ("--base-port", base_port, known.base_port)):
        if wanted is not None and wanted != there:
            raise ClusterError(
                f"{directory} holds a cluster with {name} {there}, not {wanted}: leave {name} out, "
                "or name another directory"
            )
    _check_ports(known)
    return known


def read_layout(directory: Path) -> Layout | None:
    """The cluster that was started in the directory before; None when there is none.  Raises ClusterError."""
    return _read(directory / _CLUSTER_FILE)


def _read(path: Path) -> Layout | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    made_as = values.get("directory", "")
    try:
        return Layout(path.parent, int(values["nodes"]), int(values["base.port"]), values["cluster.id"], made_as)
    except (KeyError, ValueError):
        raise ClusterError(
            f"{path} does not tell nodes, base.port and cluster.id: put it back, or name another directory"
        ) from None


def _check_empty(directory: Path) -> None:
    try:
        ours = (LOCK_FILE, SOCKET_FILE)  # a start that was refused may have left them
        names = sorted(
            item.name for item in directory.iterdir() if not item.name.startswith(".") and item.name not in ours
        )
    except FileNotFoundError:
        return
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used: {error.strerror}") from None
    if names:
        raise ClusterError(f"{directory} holds other files ({names[0]}, ...): name a new or an empty directory")


def _check_ports(layout: Layout) -> None:
    last = layout.controller_port(layout.nodes)
    if layout.nodes < 1 or layout.nodes > CONTROLLER_PORT_OFFSET:
        raise ClusterError(f"--nodes {layout.nodes}: expected 1..{CONTROLLER_PORT_OFFSET}")
    if layout.base_port < 1 or last > _PORT_MAX:
        highest = _PORT_MAX - CONTROLLER_PORT_OFFSET - layout.nodes + 1
        raise ClusterError(f"--base-port {layout.base_port}: expected 1..{highest}")


def write_node_files(layout: Layout, overrides: Mapping[str, str]) -> None:
    """Write the files that are not there yet, and the overrides into every node's.  Raises OSError.

    In a directory that was moved, or is a copy, they name what is in it now, not what is at its old place.
    """
    here = str(layout.directory.absolute())
    for node_id in layout.node_ids:
        layout.node_dir(node_id).mkdir(parents=True, exist_ok=True)
        path = layout.node_file(node_id)
        before = path.read_text(encoding="latin-1") if path.exists() else ""
        ours = f"/node-{node_id}/"
        moved = before.replace(_escaped(layout.made_as) + ours, _escaped(here) + ours) if layout.made_as else before
        after = with_values(moved or _node_file(layout, node_id), overrides)
        if after != before:
            _replace(path, after, "latin-1")


def write_cluster_file(layout: Layout) -> None:
    """Note that the directory holds this cluster, with everything a node needs.  Raises OSError."""
    write_unfinished_file(layout)
    (layout.directory / _UNFINISHED_FILE).replace(layout.directory / _CLUSTER_FILE)


def write_unfinished_file(layout: Layout) -> None:
    """Note which cluster is being made in the directory, before anything of it is there.  Raises OSError."""
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
    """Write a file as a whole or not at all: on a full disk there is the old one, or none."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding=encoding)
    beside.replace(path)


def _node_file(layout: Layout, node_id: int) -> str:
    title = (
        f"# Node {node_id} of {layout.nodes}: written by `headrace cluster start`, which keeps what is changed here.\n"
    )
    return with_values(title, layout.node_properties(node_id))


def with_values(text: str, values: Mapping[str, str]) -> str:
    """A properties file's text with these keys set: in their lines, or at the end."""
    lines = text.splitlines()
    for key, value in values.items():
        kept = [line for line in lines if _key_of(line) != key]
        place = next((index for index, line in enumerate(lines) if _key_of(line) == key), len(kept))
        kept.insert(place, f"{key}={_escaped(value)}")
        lines = kept
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: str) -> str:
    """A value as a properties file holds it: a backslash twice, what is not ASCII as UTF-16 in hexadecimal."""

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
