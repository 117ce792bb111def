"""One node of a local cluster: a broker process of its own that ends, cleanly, when its supervisor does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from headrace.cli.cluster.formatting import loss
from headrace.cli.cluster.layout import Layout

_STOP_TIMEOUT_S = 30.0
_TAIL_BYTES = 64 * 1024
_FAULT = "headrace broker: "


class State(Enum):
    """What has become of a node."""

    STOPPED = "stopped"
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    DIED = "died"


class NodeProcess:
    """`start`, `stop`, and what happens in between; lives on the supervisor's event loop.

    The broker watches a pipe whose other end is held here: however the supervisor ends, the node stops.  It is in a
    process group of its own, so that Ctrl-C reaches the supervisor alone.
    """

    def __init__(self, layout: Layout, node_id: int, on_change: Callable[[NodeProcess], None]) -> None:
        self.node_id = node_id
        self.address = layout.address(node_id)
        self.state = State.STOPPED
        self.reason = ""
        self._layout = layout
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._keep_alive = -1
        self._following: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id while there is a process."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process, without waiting for it; a node without its data has died at once.  Raises OSError."""
        lost = loss(self._layout, self.node_id)
        if lost is not None:
            self.reason = lost
            self._change(State.DIED)
            return
        watch, self._keep_alive = os.pipe()
        ready, theirs = os.pipe()
        log = self._layout.node_log(self.node_id)
        try:
            with log.open("ab") as output:
                self._log_start = output.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "headrace_broker.server", str(self._layout.node_file(self.node_id))),
                    *("--watch-fd", str(watch), "--parent-pid", str(os.getpid()), "--ready-fd", str(theirs)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[watch, theirs],
                    process_group=0,
                )
        except OSError:
            os.close(ready)
            os.close(self._keep_alive)
            raise
        finally:
            os.close(watch)
            os.close(theirs)
        self._settled.clear()
        self._change(State.STARTING)
        self._following = asyncio.create_task(self._follow(self._process, ready))

    async def settled(self) -> bool:
        """Wait until the started node serves (True) or has ended (False)."""
        await self._settled.wait()
        return self.state is State.SERVING

    async def stop(self) -> None:
        """Stop the node in order and wait for its end; one that hangs is killed."""
        process, following = self._process, self._following
        if process is None or following is None:
            return
        self._change(State.STOPPING)
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)
        done, _ = await asyncio.wait({following}, timeout=_STOP_TIMEOUT_S)
        if not done:
            _signal(process, signal.SIGKILL)
            await following

    async def _follow(self, process: asyncio.subprocess.Process, ready: int) -> None:
        """See the process serve, and end."""
        line = await _read_line(ready)
        if line and self.state is State.STARTING:
            self.address = line
            self._change(State.SERVING)
        status = await process.wait()
        os.close(self._keep_alive)
        self._process = None
        was_asked = self.state is State.STOPPING
        self.reason = "" if was_asked and status == 0 else _reason(status, self._last_fault())
        self._change(State.STOPPED if was_asked else State.DIED)

    def _change(self, state: State) -> None:
        self.state = state
        if state not in (State.STARTING, State.STOPPING):
            self._settled.set()
        self._on_change(self)

    def _last_fault(self) -> str:
        """The line in which the broker said why it did not start."""
        return last_line(self._layout.node_log(self.node_id), self._log_start, _FAULT).removeprefix(_FAULT)


def last_line(log: Path, start: int, prefix: str) -> str:
    """The last line with that prefix among what was written to the log since `start`."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith(prefix)), "")


def _reason(status: int, fault: str) -> str:
    if fault:
        return fault
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
        return  # it has ended by itself


async def _read_line(descriptor: int) -> str:
    """The line that the broker writes when it serves; empty when it ends without."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.readline().decode().strip()
