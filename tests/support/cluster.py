"""Runs a real local cluster (`headrace cluster start` and the node processes), for tests that kill nodes.

with running_cluster(tmp_path) as cluster:
    cluster.kill(2); cluster.start_node(2)        # a crash, and the restart
    cluster.stop_node(3)                          # a controlled shutdown
    cluster.pause(1); cluster.resume(1)           # SIGSTOP, SIGCONT
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import run_command
from support.preloaded import PreloadedPopen

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 60
_NODE_LINE = re.compile(r"^node (\d+) (\S+) pid (\d+)$", re.MULTILINE)
_ACTIVE = re.compile(r"^\[(.{23})\] INFO Controller \d+ is active in epoch (\d+)", re.MULTILINE)


class ClusterProcess:
    """The supervisor process and its nodes."""

    def __init__(self, directory: Path, nodes: int = 3, properties: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.nodes = nodes
        self.base_port = free_base_port(nodes)
        self.properties = properties or {}
        self._output = directory.with_name(directory.name + ".out")
        self._process: subprocess.Popen[bytes] | None = None

    # -- the supervisor ----------------------------------------------------------------------------------------------

    def start(self, *arguments: str) -> None:
        """Start the supervisor and wait until every node accepts requests."""
        seen = len(self.output)
        self.launch(*arguments)
        self.await_output(lambda text: len(_NODE_LINE.findall(text[seen:])) >= self.nodes)

    def launch(self, *arguments: str) -> None:
        """Start the supervisor without waiting."""
        command = [sys.executable, "-m", "headrace.cli.main", "cluster", "start", "--dir", str(self.directory)]
        command += ["--nodes", str(self.nodes), "--base-port", str(self.base_port), *arguments]
        command += [word for key, value in self.properties.items() for word in ("--property", f"{key}={value}")]
        with self._output.open("ab") as output:
            self._process = PreloadedPopen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def output(self) -> str:
        """Everything that the supervisor has printed."""
        return self._output.read_text() if self._output.exists() else ""

    def await_output(self, holds: Callable[[str], bool], timeout_s: float = _START_TIMEOUT_S) -> str:
        """Wait until `holds(output)` is true for the supervisor's output, and return the output."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            text = self.output
            if holds(text):
                return text
            assert self._process is not None
            if self._process.poll() is not None and not holds(self.output):
                break
            time.sleep(0.005)
        raise AssertionError(f"the cluster's output is not as expected:\n{self.output}{self.logs()}")

    def run_cli(self, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `headrace cluster COMMAND`."""
        words = ["cluster", command, *map(str, arguments), "--dir", str(self.directory)]
        return run_command("headrace.cli.main", *words)

    def signal(self, number: int) -> None:
        """Send the signal `number` to the supervisor."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until the supervisor exits. Returns its exit status."""
        assert self._process is not None
        return self._process.wait(_STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Stop the cluster as Ctrl-C does. Returns the exit status."""
        self.signal(signal.SIGINT)
        return self.wait()

    def close(self) -> None:
        """Stop all processes that are still running, for example after a failed test."""
        if self._process is None or self._process.poll() is not None:
            return
        for node_id in range(1, self.nodes + 1):
            self.resume(node_id)
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    # -- nodes -------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, separated by commas."""
        return ",".join(f"127.0.0.1:{self.base_port + index}" for index in range(self.nodes))

    def address(self, node_id: int) -> str:
        """Return the node's address as HOST:PORT."""
        return f"127.0.0.1:{self.base_port + node_id - 1}"

    def pid(self, node_id: int) -> int:
        """Return the node's pid, from the supervisor's last line of output about the node."""
        return next(int(pid) for found, _, pid in reversed(_NODE_LINE.findall(self.output)) if int(found) == node_id)

    def kill(self, node_id: int) -> None:
        """Kill the node with SIGKILL."""
        self._send(node_id, signal.SIGKILL)

    def pause(self, node_id: int) -> None:
        """Freeze the node with SIGSTOP."""
        self._send(node_id, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Resume the node with SIGCONT."""
        self._send(node_id, signal.SIGCONT)

    def _send(self, node_id: int, number: int) -> None:
        try:
            os.kill(self.pid(node_id), number)
        except (ProcessLookupError, StopIteration):
            return  # the process has exited

    def is_serving(self, node_id: int) -> bool:
        """Return whether `headrace cluster status` reports that the node accepts requests."""
        prefix = f"node {node_id} "
        lines = self.run_cli("status").stdout.splitlines()
        return any(line.startswith(prefix) and line.endswith(" serving") for line in lines)

    def start_node(self, node_id: int) -> None:
        """Start a node again, and wait until it accepts requests."""
        done = self.run_cli("start-node", node_id)
        assert done.returncode == 0, done.stderr + self.logs()

    def stop_node(self, node_id: int) -> None:
        """Stop the node with a controlled shutdown."""
        done = self.run_cli("stop-node", node_id)
        assert done.returncode == 0, done.stderr + self.logs()

    def restart_node(self, node_id: int) -> None:
        """Stop the node with a controlled shutdown, and start it again."""
        self.stop_node(node_id)
        self.start_node(node_id)

    def reconfigure(self, added: dict[int, dict[str, str]]) -> None:
        """Add properties to the properties files of nodes, and restart the cluster.

        `added` maps the id of each node to its new properties.
        """
        self.stop()
        for node_id, properties in added.items():
            with (self.directory / f"node-{node_id}" / "server.properties").open("a") as file:
                file.writelines(f"{key}={value}\n" for key, value in properties.items())
        self.start()

    def log(self, node_id: int) -> str:
        """Everything that a node has printed."""
        path = self.directory / f"node-{node_id}" / "server.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        """Return the last lines of all nodes' logs, for assertion messages."""
        return "".join(f"\n-- node {node} --\n{self.log(node)[-2000:]}" for node in range(1, self.nodes + 1))

    def active_controller(self) -> int:
        """Return the node that became the active controller in the highest epoch."""
        found = {node: _ACTIVE.findall(self.log(node)) for node in range(1, self.nodes + 1)}
        return max((int(epoch), node) for node, lines in found.items() for _, epoch in lines)[1]


@contextmanager
def running_cluster(directory: Path, nodes: int = 3, **properties: str) -> Iterator[ClusterProcess]:
    """Run a cluster until the block ends. A keyword argument `a_b="x"` sets the key `a.b` to "x"."""
    cluster = ClusterProcess(directory, nodes, {key.replace("_", "."): value for key, value in properties.items()})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def free_base_port(nodes: int) -> int:
    """Return a base port with which all client ports and controller ports of the cluster are free.

    The ports are below the system's ephemeral ports.
    """
    while True:
        base = random.randrange(12_000, 31_000)
        if all(_is_free(base + offset + index) for offset in (0, 1000) for index in range(nodes)):
            return base


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
