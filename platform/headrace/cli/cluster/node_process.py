"""One node of a local cluster: a separate broker process, which shuts down cleanly when its supervisor exits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from headrace.cli.cluster.formatting import describe_data_loss
from headrace.cli.cluster.layout import ClusterLayout

_STOP_TIMEOUT_S = 30.0
_TAIL_BYTES = 64 * 1024
_ERROR_PREFIX = "headrace broker: "


class NodeState(Enum):
    """The state of a node's process."""

    STOPPED = "stopped"
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    DIED = "died"


class NodeProcess:
    """Starts, monitors and stops the process of a node. It runs on the supervisor's event loop.

    This object keeps one end of a pipe open, and the broker watches the other end: whenever the supervisor exits, the
    broker stops. The broker runs in a separate process group, so that only the supervisor receives Ctrl-C.
    """

    def __init__(self, layout: ClusterLayout, node_id: int, on_change: Callable[[NodeProcess], None]) -> None:
        self.node_id = node_id
        self.address = layout.address(node_id)
        self.state = NodeState.STOPPED
        self.reason = ""
        self._layout = layout
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._keep_alive = -1
        self._monitor_task: asyncio.Task[None] | None = None
        self._started_or_ended = asyncio.Event()
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process does not run."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process without waiting until it serves. Raises OSError.

        If the node's data is lost, set the state to DIED and do not start the process.
        """
        data_loss = describe_data_loss(self._layout, self.node_id)
        if data_loss is not None:
            self.reason = data_loss
            self._change(NodeState.DIED)
            return
        watch, self._keep_alive = os.pipe()
        ready, child_end = os.pipe()
        log = self._layout.node_log(self.node_id)
        try:
            with log.open("ab") as output:
                self._log_start = output.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "headrace_broker.server", str(self._layout.node_file(self.node_id))),
                    *("--watch-fd", str(watch), "--parent-pid", str(os.getpid()), "--ready-fd", str(child_end)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[watch, child_end],
                    process_group=0,
                )
        except OSError:
            os.close(ready)
            os.close(self._keep_alive)
            raise
        finally:
            os.close(watch)
            os.close(child_end)
        self._started_or_ended.clear()
        self._change(NodeState.STARTING)
        self._monitor_task = asyncio.create_task(self._monitor(self._process, ready))

    async def wait_until_started_or_ended(self) -> bool:
        """Wait until the started node serves or its process has ended. Return whether the node serves."""
        await self._started_or_ended.wait()
        return self.state is NodeState.SERVING

    async def stop(self) -> None:
        """Stop the node with a controlled shutdown, and wait for its exit. After a timeout, kill the node."""
        process, monitor_task = self._process, self._monitor_task
        if process is None or monitor_task is None:
            return
        self._change(NodeState.STOPPING)
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)
        done, _ = await asyncio.wait({monitor_task}, timeout=_STOP_TIMEOUT_S)
        if not done:
            _signal(process, signal.SIGKILL)
            await monitor_task

    async def _monitor(self, process: asyncio.subprocess.Process, ready: int) -> None:
        """Update the node's state when the process starts to serve and when it exits.

        The process writes a line to the pipe `ready` when it starts to serve.
        """
        line = await _read_line(ready)
        if line and self.state is NodeState.STARTING:
            self.address = line
            self._change(NodeState.SERVING)
        status = await process.wait()
        os.close(self._keep_alive)
        self._process = None
        was_requested = self.state is NodeState.STOPPING
        self.reason = "" if was_requested and status == 0 else _exit_reason(status, self._last_error())
        self._change(NodeState.STOPPED if was_requested else NodeState.DIED)

    def _change(self, state: NodeState) -> None:
        self.state = state
        if state not in (NodeState.STARTING, NodeState.STOPPING):
            self._started_or_ended.set()
        self._on_change(self)

    def _last_error(self) -> str:
        """Return the error that the broker logged when it failed to start."""
        return last_line(self._layout.node_log(self.node_id), self._log_start, _ERROR_PREFIX).removeprefix(
            _ERROR_PREFIX
        )


def last_line(log: Path, start: int, prefix: str) -> str:
    """Return the last line that begins with `prefix` in `log` after byte `start`, or "" if there is no such line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith(prefix)), "")


def _exit_reason(status: int, error_line: str) -> str:
    if error_line:
        return error_line
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return  # the process has already exited


async def _read_line(descriptor: int) -> str:
    """Return the line that the broker writes when it starts to serve, or an empty string if the broker exits first."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.readline().decode().strip()
