"""The worker's child processes: the fork server, and a `HostProcess` for each process of tasks or connectors.

These objects belong to the worker's event loop. The exit of a host is reported once, with the exit status. If the fork
server dies, all its descendants are killed, and then it is replaced. If it died soon after its start, it is replaced
after a back-off.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from headrace.runtime import group_signals, process_tree
from headrace.runtime.channel import Channel, Handler
from headrace.runtime.fork_server import MESSAGE_SIZE_MAX, SHARE_TIMEOUT_S
from headrace.runtime.messages import HostMessage

log = logging.getLogger(__name__)

SPAWNS_MAX = 32  # concurrent spawns: their requests must fit into the buffer of the control socket
NAME_LENGTH_MAX = 64  # process names are only displayed
MODULE_NAME_LENGTH_MAX = 200  # the message with the name must fit into MESSAGE_SIZE_MAX
_STOPPING = "the worker is stopping"
SPAWN_TIMEOUT_S = 2.0 * SHARE_TIMEOUT_S
"""The time after which the fork server is replaced if a spawn, with the import of a shared module, is not complete."""
SHARE_WAIT_S = 1.5 * SHARE_TIMEOUT_S
EXIT_TIMEOUT_S = 1.0
RESTART_BACKOFF_MIN_S, RESTART_BACKOFF_MAX_S = 1.0, 60.0
STABLE_S = 60.0
"""A fork server that has run for this long is replaced without a back-off."""


class ForkServerDied(ChildProcessError):
    """The fork server died while it was creating a process. A new fork server can create the process."""


class HostProcess:
    """A child process with a channel. `ended` is a future of its exit status.

    `suspects` are the connectors that may have caused the process to exit. If the process was killed because the fork
    server died, no connector or task is at fault.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: int | None = None
        self.channel: Channel
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.suspects: list[str] = []
        self.died_with_fork_server = False
        self._is_killed_by_worker = False

    @property
    def was_killed(self) -> bool:
        """Whether the process was ended by a signal not sent by its worker, for example the OOM killer's SIGKILL."""
        is_intended = self._is_killed_by_worker or self.died_with_fork_server
        return self.ended.done() and self.ended.result() < 0 and not is_intended

    def kill(self) -> None:
        """Kill the process and all its descendants immediately."""
        if self.pid is not None and not self.ended.done():
            self._is_killed_by_worker = True
            process_tree.kill_tree(self.pid)

    def _set_ended(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


class Processes:
    """Starts child processes with `spawn()` and ends them with `close()`. The first use starts the fork server.

    `spared` are the pids of direct children of the worker that this object must not end.
    """

    def __init__(self, spared: set[int] | None = None) -> None:
        self.spared = set() if spared is None else spared
        self._numbers = itertools.count(1)
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._spawning: dict[int, tuple[HostProcess, asyncio.Future[None]]] = {}
        self._spawn_limit = asyncio.Semaphore(SPAWNS_MAX)
        self._running: dict[int, HostProcess] = {}
        self._closing = False
        self._ready: asyncio.Future[None] | None = None
        self._modules: set[str] = set()  # modules that the fork server has been told to import
        self._sharing: dict[str, asyncio.Future[None]] = {}  # modules whose import is not complete
        self._unshared: set[str] = set()  # modules whose import may have ended a fork server
        self._has_been_ready = False
        self._started_s = 0.0
        self._backoff_s = 0.0

    @property
    def fork_server_pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def start(self) -> None:
        """Start the fork server early, so that the first child starts faster.

        `spawn` waits until the fork server is ready.
        """
        process_tree.adopt_orphans()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "headrace.runtime.fork_server", str(theirs.fileno()), str(os.getpid())]
            try:
                with group_signals.withheld():
                    self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=None)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours
        self._modules.clear()
        self._started_s = time.monotonic()
        loop = asyncio.get_running_loop()
        if self._ready is None or self._ready.done():
            self._ready = loop.create_future()
        loop.add_reader(ours.fileno(), self._receive)

    async def spawn(self, name: str, handler: Handler) -> HostProcess:
        """Fork a child that runs `headrace.runtime.host`. `handler` handles the child's messages to the worker.

        Raises OSError if no process can be created, and ForkServerDied if the call can be retried.
        """
        if self._closing:
            raise ChildProcessError(_STOPPING)
        if self._ready is None:
            self.start()
        assert self._ready is not None
        await asyncio.shield(self._ready)
        host = HostProcess(name)
        ours, theirs = socket.socketpair()
        try:
            await self._spawn(host, theirs)
        except BaseException:
            ours.close()
            raise
        host.channel = await Channel.open(ours, HostMessage, handler)
        return host

    async def share(self, modules: Iterable[str]) -> bool:
        """Let the fork server import modules for later children. Return False if all are known. Call after `spawn`.

        A module that cannot be imported is not shared.
        """
        new = [module for module in dict.fromkeys(modules) if module not in self._modules | self._unshared]
        self._modules.update(new)
        deadline = time.monotonic() + SHARE_WAIT_S
        for module in new:
            if len(module) > MODULE_NAME_LENGTH_MAX:
                log.error(
                    "Module %.50s... of shared_modules is not shared, because its name has more than %d characters",
                    module,
                    MODULE_NAME_LENGTH_MAX,
                )
            elif self._control is not None:
                with suppress(BlockingIOError):  # then the processes of the connector import it one by one
                    self._control.send(json.dumps({"share": module}).encode())
                shared = self._sharing[module] = asyncio.get_running_loop().create_future()
                await asyncio.wait([shared], timeout=max(0.0, deadline - time.monotonic()))
        return bool(new)

    async def _spawn(self, host: HostProcess, theirs: socket.socket) -> None:
        with theirs:
            async with self._spawn_limit:
                number, spawned = next(self._numbers), asyncio.get_running_loop().create_future()
                request = json.dumps({"spawn": number, "name": host.name[:NAME_LENGTH_MAX]}).encode()
                if self._closing:
                    raise ChildProcessError(_STOPPING)
                if self._control is None:
                    raise ForkServerDied("the fork server died")
                self._spawning[number] = host, spawned
                socket.send_fds(self._control, [request], [theirs.fileno()])
                if not (await asyncio.wait([spawned], timeout=SPAWN_TIMEOUT_S))[0]:
                    self._replace_hung_fork_server(number)
                await spawned

    def _replace_hung_fork_server(self, number: int) -> None:
        """Kill the fork server, which does not respond. Its death is detected when its socket is closed."""
        if number in self._spawning and self._server is not None:
            log.error("Fork server: no process was started within %g s; killing the fork server", SPAWN_TIMEOUT_S)
            self._server.kill()

    async def close(self) -> None:
        """End all descendants of this worker that are still running."""
        self._closing = True
        if self._ready is not None and not self._ready.done():
            _fail(self._ready, ChildProcessError(_STOPPING))
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        self._end_waits(ChildProcessError(_STOPPING))
        if self._server is not None:
            await asyncio.to_thread(_end, self._server)
            self._kill_orphans()
        for host in self._running.values():
            host._set_ended(-signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """Kill and reap the processes of a dead fork server, which this process has adopted as their sub-reaper."""
        process_tree.kill_descendants(spare=self.spared)

    def _receive(self) -> None:
        assert self._control is not None
        while True:
            try:
                packet = self._control.recv(MESSAGE_SIZE_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self._fork_server_died()
                return
            self._handle(json.loads(packet))

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": _} if self._ready is not None and not self._ready.done():
                self._has_been_ready = True
                self._ready.set_result(None)
            case {"shared": module}:
                if (shared := self._sharing.pop(module, None)) is not None and not shared.done():
                    shared.set_result(None)
            case {"spawned": number, "pid": pid}:
                host, spawned = self._spawning.pop(number)
                host.pid = pid
                self._running[pid] = host  # registered before the next message, which may report its exit
                if not spawned.done():
                    spawned.set_result(None)
            case {"failed": number, "error": error}:
                _, spawned = self._spawning.pop(number)
                if not spawned.done():
                    spawned.set_exception(ChildProcessError(error))
            case {"exited": pid, "status": status}:
                if (ended := self._running.pop(pid, None)) is not None:
                    ended._set_ended(status)

    def _fork_server_died(self) -> None:
        assert self._control is not None
        assert self._server is not None
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self._server.kill()
        status = self._server.wait()
        self._kill_orphans()
        self._end_waits(ForkServerDied(f"the fork server died (exit status {status})"))
        self._unshared.update(self._sharing)
        self._sharing.clear()
        for host in self._running.values():
            host.died_with_fork_server = True
            host._set_ended(-signal.SIGKILL)
        self._running.clear()
        if self._closing:
            return
        if not self._has_been_ready and self._ready is not None:
            log.error("Fork server: failed to start (exit status %d)", status)
            ready, self._ready = self._ready, None  # the next spawn starts a new fork server
            _fail(ready, ChildProcessError(f"the fork server did not start (exit status {status})"))
            return
        self._start_again(status)

    def _end_waits(self, error: ChildProcessError) -> None:
        """End all waits for a response of the fork server, because no response will arrive."""
        for _, spawned in self._spawning.values():
            if not spawned.done():
                _fail(spawned, error)
        self._spawning.clear()
        for shared in self._sharing.values():
            if not shared.done():
                shared.set_result(None)

    def _start_again(self, status: int) -> None:
        """Start a new fork server, immediately or after a back-off. `spawn` waits until it is ready."""
        loop = asyncio.get_running_loop()
        is_stable = time.monotonic() - self._started_s >= STABLE_S
        delay_s = 0.0 if is_stable else self._backoff_s
        self._backoff_s = min(max(2 * delay_s, RESTART_BACKOFF_MIN_S), RESTART_BACKOFF_MAX_S)
        log.error(
            "Fork server: died (exit status %d), all its connectors and tasks were killed; starting a new fork server "
            "in %g s, and then the connectors and tasks",
            status,
            delay_s,
        )
        if self._ready is None or self._ready.done():
            self._ready = loop.create_future()
        if delay_s:
            loop.call_later(delay_s, self._start_unless_closing)
        else:
            self.start()

    def _start_unless_closing(self) -> None:
        if not self._closing:
            self.start()


def _fail(future: asyncio.Future[None], error: ChildProcessError) -> None:
    """Set an exception. If nothing waits for the future, asyncio logs no warning."""
    future.set_exception(error)
    future.exception()


def _end(server: subprocess.Popen[bytes]) -> None:
    """Wait for the exit of the fork server, whose control socket was closed. If it does not exit, kill it."""
    try:
        server.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


class ThreadHosts:
    """Starts hosts as threads of this process (`task.isolation=thread`), for embedding and tests."""

    async def spawn(self, name: str, handler: Handler) -> HostProcess:
        """Run a host in a thread. A hung thread can be abandoned, but not killed."""
        from headrace.runtime import host as host_module

        loop = asyncio.get_running_loop()
        host = HostProcess(name)
        ours, theirs = socket.socketpair()

        def serve() -> None:
            host_module.serve(theirs)
            with suppress(RuntimeError):  # the worker has stopped, and its event loop is closed
                loop.call_soon_threadsafe(host._set_ended, 0)

        threading.Thread(target=serve, name=name, daemon=True).start()
        host.channel = await Channel.open(ours, HostMessage, handler)
        return host
