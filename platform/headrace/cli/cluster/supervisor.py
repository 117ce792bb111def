"""The supervisor of `headrace cluster start`: it starts and stops the nodes, and prints changes of their states.

The cluster is meant for testing failures, so a node that dies is not restarted until the `start-node` command is
called. The lines on standard output are meant for users and scripts. Each line is flushed immediately.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.cli.cluster.control import ControlServer
from headrace.cli.cluster.formatting import check_enough_other_nodes, describe_data_loss, format_node
from headrace.cli.cluster.health import RESPONDING_STATES, health
from headrace.cli.cluster.layout import ClusterError, ClusterLayout
from headrace.cli.cluster.node_process import NodeProcess, NodeState

PrintLine = Callable[[str], None]


class Supervisor:
    """Starts, monitors and stops the nodes' processes. It runs on the event loop."""

    def __init__(self, layout: ClusterLayout, print_line: PrintLine) -> None:
        self.layout = layout
        self._print_line = print_line
        self._nodes = {node_id: NodeProcess(layout, node_id, self._on_node_change) for node_id in layout.node_ids}
        self._node_locks: dict[int, asyncio.Lock] = {node_id: asyncio.Lock() for node_id in layout.node_ids}
        self._has_announced = False
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self, control: ControlServer) -> None:
        """Start every node, and run until the stop command or a signal. Raises ClusterError if the start fails."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        await control.serve(self._handle_command)
        try:
            for node in self._nodes.values():
                await node.start()
            await self._wait_until_started()
            await self._stop.wait()
        finally:
            self._is_stopping = True
            await asyncio.gather(*(node.stop() for node in self._nodes.values()))
            self._stopped.set()
            await control.close()

    async def _wait_until_started(self) -> None:
        """Wait until each node serves or has died. Raises ClusterError if half of the nodes or more have died.

        Returns early if the supervisor receives the stop command or a signal.
        """
        waits = [asyncio.ensure_future(node.wait_until_started_or_ended()) for node in self._nodes.values()]
        stopping = asyncio.ensure_future(self._stop.wait())
        pending: set[asyncio.Future[Any]] = {*waits, stopping}
        while not stopping.done() and not all(wait.done() for wait in waits):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            self._check_majority()
        for wait in pending:
            wait.cancel()

    def _check_majority(self) -> None:
        failed = [node for node in self._nodes.values() if node.state is NodeState.DIED]
        if 2 * len(failed) >= len(self._nodes):
            raise ClusterError(f"node {failed[0].node_id} did not start: {failed[0].reason}")

    # -- output ------------------------------------------------------------------------------------------------------

    def _on_node_change(self, node: NodeProcess) -> None:
        if node.state is NodeState.SERVING:
            if not self._has_announced:
                self._has_announced = True
                self._print_line(f"bootstrap.servers={self.layout.bootstrap_servers}")
            self._print_line(f"node {node.node_id} {node.address} pid {node.pid}")
        elif node.state is NodeState.DIED:
            self._print_line(f"node {node.node_id} died: {node.reason}")
        elif node.state is NodeState.STOPPED and not self._is_stopping:
            self._print_line(f"node {node.node_id} stopped{f': {node.reason}' if node.reason else ''}")

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _handle_command(self, command: str, node_id: int | None) -> list[str]:
        """Run a command from the control socket; return the lines of the response. Raises ClusterError."""
        if command == "status":
            return await self._status()
        if command == "stop":
            self._stop.set()
            await self._stopped.wait()
            return []
        actions: dict[str, Callable[[NodeProcess], Awaitable[list[str]]]] = {
            "start-node": self._start_node,
            "start-node --format": self._start_reformatted_node,
            "stop-node": self._stop_node,
        }
        if command not in actions:
            raise ClusterError(f"unknown command '{command}': expected status, stop, start-node or stop-node")
        node = self._nodes.get(node_id or 0)
        if node is None:
            raise ClusterError(f"there is no node {node_id}: the cluster has nodes 1..{self.layout.nodes}")
        async with self._node_locks[node.node_id]:
            return await actions[command](node)

    async def _status(self) -> list[str]:
        lines = await asyncio.gather(*map(_status_line, self._nodes.values()))
        return [f"bootstrap.servers={self.layout.bootstrap_servers}", *lines]

    async def _start_node(self, node: NodeProcess) -> list[str]:
        if node.is_alive:
            raise ClusterError(f"node {node.node_id} is already running as process {node.pid}")
        await node.start()
        if not await node.wait_until_started_or_ended():
            raise ClusterError(f"node {node.node_id} did not start: {node.reason}")
        return [f"node {node.node_id} {node.address} pid {node.pid}"]

    async def _start_reformatted_node(self, node: NodeProcess) -> list[str]:
        """Start a node, and format it first if its data is lost and enough other nodes serve."""
        if describe_data_loss(self.layout, node.node_id) is not None:
            states = await asyncio.gather(*(_state_text(other) for other in self._nodes.values() if other is not node))
            check_enough_other_nodes(self.layout, node.node_id, sum(state in RESPONDING_STATES for state in states))
            format_node(self.layout, node.node_id)
        return await self._start_node(node)

    async def _stop_node(self, node: NodeProcess) -> list[str]:
        if not node.is_alive:
            raise ClusterError(f"node {node.node_id} is not running")
        await node.stop()
        if node.reason:
            raise ClusterError(f"node {node.node_id} did not stop cleanly: {node.reason}")
        return [f"node {node.node_id} stopped"]


async def _status_line(node: NodeProcess) -> str:
    line = f"node {node.node_id} {node.address}"
    if node.pid is not None:
        line += f" pid {node.pid}"
    reason = f": {node.reason}" if node.state is NodeState.DIED else ""
    return f"{line} {await _state_text(node)}{reason}"


async def _state_text(node: NodeProcess) -> str:
    """Return the state of the node in the cluster if its process serves, otherwise the state of the process."""
    return await health(node.node_id, node.address) if node.state is NodeState.SERVING else node.state.value
