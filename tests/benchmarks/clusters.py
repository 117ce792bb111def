"""Starts clusters of headrace and, if available, of Apache Kafka. A benchmark can stop and start each node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import psutil
from confluent_kafka.admin import AdminClient, TopicMetadata

from support import apache
from support.cluster import ClusterProcess

_TIMEOUT_S = 300.0
_POLL_S = 0.05


class Nodes(Protocol):
    """A running cluster. Its nodes are numbered from 1."""

    name: str
    bootstrap: str

    def pids(self) -> list[int]: ...

    def data(self, node: int) -> Path:
        """Return the node's log directory."""

    def stop(self, node: int) -> None:
        """Stop the node with a controlled shutdown."""

    def start(self, node: int) -> None: ...

    def restart_all(self) -> None:
        """Stop every node, then start them all."""

    def describe(self, topic: str) -> None:
        """Run `kafka-topics --describe`, using headrace's tool for headrace and Kafka's tool for Kafka."""


class Headrace:
    """A cluster that `headrace cluster` runs."""

    name = "headrace"

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        self.stop = cluster.stop_node
        self.start = cluster.start_node

    def pids(self) -> list[int]:
        return [self._cluster.pid(node) for node in range(1, self._cluster.nodes + 1)]

    def data(self, node: int) -> Path:
        return self._cluster.directory / f"node-{node}" / "data"

    def restart_all(self) -> None:
        self._cluster.stop()
        self._cluster.start()

    def describe(self, topic: str) -> None:
        words = ["--bootstrap-server", self.bootstrap, "--describe", "--topic", topic]
        command = [sys.executable, "-m", "headrace_broker.tools.topics", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)


class Apache:
    """A cluster of Apache Kafka processes.

    When the exit stack `stack` closes, it ends all processes, including those that were restarted.
    """

    name = "Apache Kafka"

    def __init__(self, nodes: list[apache.ApacheProcess], stack: ExitStack) -> None:
        self.bootstrap = ",".join(node.address for node in nodes)
        self._nodes = nodes
        self._stack = stack
        self._pids = [node.pid for node in nodes]
        self._commands = [psutil.Process(node.pid).cmdline() for node in nodes]

    def pids(self) -> list[int]:
        return self._pids

    def data(self, node: int) -> Path:
        return self._nodes[node - 1].directory / "data"

    def stop(self, node: int) -> None:
        process = psutil.Process(self._pids[node - 1])
        process.send_signal(signal.SIGTERM)
        process.wait(_TIMEOUT_S)

    def start(self, node: int) -> None:
        known = self._nodes[node - 1]
        with known.log.open("ab") as output:
            process = subprocess.Popen(
                self._commands[node - 1], stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=known.directory
            )
        self._stack.callback(_terminate, process)
        self._pids[node - 1] = process.pid

    def restart_all(self) -> None:
        for pid in self._pids:
            psutil.Process(pid).send_signal(signal.SIGTERM)
        for pid in self._pids:
            psutil.Process(pid).wait(_TIMEOUT_S)
        for node in range(1, len(self._nodes) + 1):
            self.start(node)

    def describe(self, topic: str) -> None:
        words = ("--bootstrap-server", self.bootstrap, "--describe", "--topic", topic)
        done = apache.run_tool("org.apache.kafka.tools.TopicCommand", *words, timeout_s=_TIMEOUT_S)
        done.check_returncode()


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def headrace(nodes: int, **settings: str) -> Iterator[Nodes]:
    """Run a headrace cluster. A keyword argument `a_b="x"` sets the config `a.b` to "x"."""
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        properties = {key.replace("_", "."): value for key, value in settings.items()}
        cluster = ClusterProcess(Path(directory) / "cluster", nodes, properties)
        try:
            cluster.start()
            yield Headrace(cluster)
        finally:
            cluster.close()


@contextmanager
def apache_kafka(nodes: int, **settings: str) -> Iterator[Nodes]:
    """Run an Apache Kafka cluster. A keyword argument `a_b="x"` sets the config `a.b` to "x"."""
    properties = {key.replace("_", "."): value for key, value in settings.items()}
    with ExitStack() as stack:
        started = stack.enter_context(apache.cluster(nodes, **properties))
        running = Apache(started, stack)
        wait_for_topics(running.bootstrap, lambda topics: True)
        yield running


def cluster_starters() -> list[Callable[..., AbstractContextManager[Nodes]]]:
    """Return the functions that start a cluster of headrace and, if available, of Apache Kafka, in this order."""
    return [headrace] if apache.unavailable_reason() else [headrace, apache_kafka]


def wait_for_topics(
    bootstrap: str, holds: Callable[[dict[str, TopicMetadata]], bool], topic: str | None = None
) -> None:
    """Fetch the metadata of `topic`, or of all topics if `topic` is None, until `holds(metadata)` is true.

    Raises TimeoutError if this takes too long.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if holds(admin.list_topics(topic, timeout=10).topics):
                return
        except Exception as error:  # requests fail with KafkaException while a cluster starts
            if type(error).__name__ != "KafkaException":
                raise
        time.sleep(_POLL_S)  # poll, because no event reports changed metadata
    raise TimeoutError(f"{topic or 'the topics'} did not reach the expected state within {_TIMEOUT_S:.0f} s")


def wait_until_in_sync(bootstrap: str, topic: str, partitions: int, replicas: int) -> None:
    """Wait until `partitions` partitions of the topic have a leader and `replicas` in-sync replicas."""

    def holds(topics: dict[str, TopicMetadata]) -> bool:
        found = topics[topic].partitions.values() if topic in topics else ()
        in_sync = sum(item.leader >= 0 and len(item.isrs) == replicas for item in found)
        return in_sync == partitions

    wait_for_topics(bootstrap, holds, topic)
