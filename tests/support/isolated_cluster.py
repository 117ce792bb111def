"""A cluster of isolated nodes. Each node has its own network namespace, small disk and process.

Only programs that run in a sandbox (`support.namespaces`) can use this module.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from support.namespaces import Network, SmallDisk
from support.raw_client import RawClient

_CLIENT_PORT = 9092
_CONTROLLER_PORT = 9093
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 60
_METADATA_TIMEOUT_S = 2.0
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_ACTIVE = re.compile(r"INFO Controller \d+ is active in epoch (\d+)")


class IsolatedNode:
    """One node. Its process may be dead, frozen, or running."""

    def __init__(
        self, network: Network, directory: Path, node_id: int, properties: dict[str, str], disk_mib: int
    ) -> None:
        self.node_id = node_id
        self.disk = SmallDisk(directory / f"node-{node_id}", disk_mib)
        self.log_path = directory / f"node-{node_id}.log"
        self.is_frozen = False
        file = directory / f"node-{node_id}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        server = [sys.executable, "-m", "headrace_broker.server", "--cluster-id", _CLUSTER_ID, str(file)]
        self._command = [*network.within(node_id), *server]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists, even if it is frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status of the last process, or None if it has not exited or no process was started."""
        return None if self._process is None else self._process.returncode

    def launch(self) -> None:
        """Start the process, without waiting until it accepts requests."""
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.log_path.parent
            )
        self.is_frozen = False

    def send(self, number: int) -> None:
        """Send the signal `number` to the node's process, if the process exists."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(number)
        self.is_frozen = number == signal.SIGSTOP or (self.is_frozen and number != signal.SIGCONT)

    def kill(self) -> None:
        """Kill the node's process with SIGKILL."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Stop the node with a controlled shutdown."""
        self.send(signal.SIGTERM)
        if self._process is not None:
            self._process.wait(_STOP_TIMEOUT_S)

    @property
    def log(self) -> str:
        """Everything that the node has printed."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


class IsolatedCluster:
    """A cluster whose nodes are brokers and controllers. Each node runs on the machine with the same number."""

    def __init__(self, network: Network, directory: Path, disk_mib: int, properties: dict[str, str]) -> None:
        self.network = network
        voters = ",".join(f"{node}@{network.address(node)}:{_CONTROLLER_PORT}" for node in network.machines)
        self.nodes: dict[int, IsolatedNode] = {}
        for node_id in network.machines:
            address = network.address(node_id)
            listeners = f"PLAINTEXT://{address}:{_CLIENT_PORT},CONTROLLER://{address}:{_CONTROLLER_PORT}"
            own = {
                "node.id": str(node_id),
                "process.roles": "broker,controller",
                "listeners": listeners,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                "log.dirs": str(directory / f"node-{node_id}" / "data"),
                **properties,
            }
            self.nodes[node_id] = IsolatedNode(network, directory, node_id, own, disk_mib)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, separated by commas."""
        return ",".join(f"{self.network.address(node)}:{_CLIENT_PORT}" for node in self.nodes)

    def start(self) -> None:
        """Start every node, and wait until all nodes accept requests."""
        for node in self.nodes.values():
            node.launch()
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        for node in self.nodes.values():
            while " serves " not in node.log:
                assert node.is_running, node.log
                assert time.monotonic() < deadline_s, node.log
                time.sleep(0.05)

    def unhealthy_reason(self, topic: str) -> str:
        """Return why the cluster is not healthy, according to the metadata of every node.

        Return an empty string if the cluster is healthy. All replicas must be in sync. All nodes must report the same
        leaders, which shows that no former leader still considers itself the leader.
        """
        known = {}
        for node, address in zip(self.nodes, self.bootstrap_servers.split(","), strict=True):
            try:
                with RawClient(address, _METADATA_TIMEOUT_S) as client:
                    known[node] = _leaders(client, topic)
            except OSError as error:
                return f"node {node} does not respond: {error}"
        short = {name: isr for name, (_, isr) in known[1].items() if len(isr) < len(self.nodes)}
        if short:
            return f"in-sync replicas {short}"
        return "" if all(item == known[1] for item in known.values()) else f"the nodes have different leaders: {known}"

    def active_controller(self) -> int:
        """Return the node that became the active controller in the highest epoch."""
        return max(self._activations())[1]

    def elections(self) -> int:
        """Return the number of quorum epochs with an active controller."""
        return len({epoch for epoch, _ in self._activations()})

    def _activations(self) -> list[tuple[int, int]]:
        return [(int(epoch), node.node_id) for node in self.nodes.values() for epoch in _ACTIVE.findall(node.log)]

    def stop(self) -> None:
        """Stop all nodes at the same time with SIGTERM."""
        for node in self.nodes.values():
            node.send(signal.SIGTERM)
        for node in self.nodes.values():
            node.stop()

    def replicas(self, topic: str, partition: int) -> dict[int, bytes]:
        """Return the bytes of a partition's log on each node. The nodes must be stopped."""
        found = {}
        for node in self.nodes.values():
            files = sorted((node.disk.path / "data" / f"{topic}-{partition}").glob("*.log"))
            found[node.node_id] = b"".join(path.read_bytes() for path in files)
        return found

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the highest leader epoch in which a record was appended to a partition."""
        newest = 0
        for node in self.nodes.values():
            path = node.disk.path / "data" / f"{topic}-{partition}" / "leader-epoch-checkpoint"
            if path.exists():
                newest = max(newest, *(int(line.split()[0]) for line in path.read_text().splitlines()[2:]), 0)
        return newest


def _leaders(client: RawClient, topic: str) -> dict[str, tuple[tuple[int, int], tuple[int, ...]]]:
    """Return {partition: ((leader, epoch), in-sync replicas)}, as the node of `client` reports it.

    The partitions are those of `topic` and of `__consumer_offsets`.
    """
    response = client.call(
        MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in (topic, GROUP_METADATA_TOPIC)]), 9
    )
    return {
        f"{found.name}-{item.partition_index}": ((item.leader_id, item.leader_epoch), tuple(item.isr_nodes))
        for found in response.topics
        for item in found.partitions
    }


def environment() -> dict[str, str]:
    """Return the environment variables with which a program in a sandbox finds the test sources."""
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])}
