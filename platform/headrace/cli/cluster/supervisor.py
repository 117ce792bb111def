"""The process behind `headrace cluster start`: it starts the nodes, says what becomes of them, and stops them.

A node that dies stays dead until `start-node` asks for it: this is for people who try what a cluster survives.  Lines
for people and scripts go to standard output, each flushed at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.cli.cluster.control import ControlServer
from headrace.cli.cluster.formatting import check_others_have_everything, format_node, loss
from headrace.cli.cluster.health import ANSWERS, health
from headrace.cli.cluster.layout import ClusterError, Layout
from headrace.cli.cluster.node_process import NodeProcess, State

Say = Callable[[str], None]


class Supervisor:
    """Owner of the nodes' processes; lives on the event loop."""

    def __init__(self, layout: Layout, say: Say) -> None:
        self.layout = layout
        self._say = say
        self._nodes = {node_id: NodeProcess(layout, node_id, self._changed) for node_id in layout.node_ids}
        self._busy: dict[int, asyncio.Lock] = {node_id: asyncio.Lock() for node_id in layout.node_ids}
        self._has_announced = False
        self._is_stopping = False
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self, control: ControlServer) -> None:
        """Start every node, and stay until told to stop.  Raises ClusterError when the cluster cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        await control.serve(self._answer)
        try:
            for node in self._nodes.values():
                await node.start()
            await self._started()
            await self._stop.wait()
        finally:
            self._is_stopping = True
            await asyncio.gather(*(node.stop() for node in self._nodes.values()))
            self._stopped.set()
            await control.close()

    async def _started(self) -> None:
        """Wait until the nodes serve, or too few of them are left.  Raises ClusterError."""
        waits = [asyncio.ensure_future(node.settled()) for node in self._nodes.values()]
        stopping = asyncio.ensure_future(self._stop.wait())
        pending: set[asyncio.Future[Any]] = {*waits, stopping}
        while not stopping.done() and not all(wait.done() for wait in waits):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            self._check_majority()
        for wait in pending:
            wait.cancel()

    def _check_majority(self) -> None:
        failed = [node for node in self._nodes.values() if node.state is State.DIED]
        if 2 * len(failed) >= len(self._nodes):
            raise ClusterError(f"node {failed[0].node_id} did not start: {failed[0].reason}")

    # -- what is said ------------------------------------------------------------------------------------------------

    def _changed(self, node: NodeProcess) -> None:
        if node.state is State.SERVING:
            if not self._has_announced:
                self._has_announced = True
                self._say(f"bootstrap.servers={self.layout.bootstrap_servers}")
            self._say(f"node {node.node_id} {node.address} pid {node.pid}")
        elif node.state is State.DIED:
            self._say(f"node {node.node_id} died: {node.reason}")
        elif node.state is State.STOPPED and not self._is_stopping:
            self._say(f"node {node.node_id} stopped{f': {node.reason}' if node.reason else ''}")

    # -- what is asked -----------------------------------------------------------------------------------------------

    async def _answer(self, command: str, node_id: int | None) -> list[str]:
        """The lines that answer a command from another shell.  Raises ClusterError."""
        if command == "status":
            return await self._status()
        if command == "stop":
            self._stop.set()
            await self._stopped.wait()
            return []
        actions: dict[str, Callable[[NodeProcess], Awaitable[list[str]]]] = {
            "start-node": self._start_node,
            "start-node --format": self._begin_anew,
            "stop-node": self._stop_node,
        }
        if command not in actions:
            raise ClusterError(f"'{command}' is none of status, stop, start-node, stop-node")
        node = self._nodes.get(node_id or 0)
        if node is None:
            raise ClusterError(f"there is no node {node_id}: the cluster has nodes 1..{self.layout.nodes}")
        async with self._busy[node.node_id]:
            return await actions[command](node)

    async def _status(self) -> list[str]:
        lines = await asyncio.gather(*map(_status_line, self._nodes.values()))
        return [f"bootstrap.servers={self.layout.bootstrap_servers}", *lines]

    async def _start_node(self, node: NodeProcess) -> list[str]:
        if node.is_alive:
            raise ClusterError(f"node {node.node_id} runs already, as process {node.pid}")
        await node.start()
        if not await node.settled():
            raise ClusterError(f"node {node.node_id} did not start: {node.reason}")
        return [f"node {node.node_id} {node.address} pid {node.pid}"]

    async def _begin_anew(self, node: NodeProcess) -> list[str]:
        """Start a node whose data is gone; one that has its data needs no leave from the others."""
        if loss(self.layout, node.node_id) is not None:
            found = await asyncio.gather(*(_found(other) for other in self._nodes.values() if other is not node))
            check_others_have_everything(self.layout, node.node_id, sum(state in ANSWERS for state in found))
            format_node(self.layout, node.node_id)
        return await self._start_node(node)

    async def _stop_node(self, node: NodeProcess) -> list[str]:
        if not node.is_alive:
            raise ClusterError(f"node {node.node_id} does not run")
        await node.stop()
        if node.reason:
            raise ClusterError(f"node {node.node_id} did not stop cleanly: {node.reason}")
        return [f"node {node.node_id} stopped"]


async def _status_line(node: NodeProcess) -> str:
    line = f"node {node.node_id} {node.address}"
    if node.pid is not None:
        line += f" pid {node.pid}"
    reason = f": {node.reason}" if node.state is State.DIED else ""
    return f"{line} {await _found(node)}{reason}"


async def _found(node: NodeProcess) -> str:
    """The state of the process, or what one that serves is to its cluster."""
    return await health(node.node_id, node.address) if node.state is State.SERVING else node.state.value
