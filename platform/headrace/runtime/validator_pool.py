"""Processes for calls to plug-ins that are not running: validation, key definitions, checks of altered offsets.

A process serves one request at a time, so a plug-in that hangs delays only requests for its own connector class. One
idle process is kept for some seconds, because most clients send several requests one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from headrace.runtime import messages
from headrace.runtime.channel import RemoteError
from headrace.runtime.processes import HostProcess

IDLE_S = 3.0  # an idle process uses 10 MB; starting another one takes 20 ms
PROCESSES_MAX = 16
PROCESSES_PER_CLASS_MAX = 4
"""The maximum number of processes for one connector class, so that others remain if all of its processes hang."""

R = TypeVar("R")


class SendRequest(Protocol):
    """Sends a request to a host. Raises RemoteError. Any other error means that the host is unusable."""

    async def __call__(self, host: HostProcess, message: messages.Request[R], /) -> R: ...


class ValidatorPool:
    """Sends requests to processes that `spawn` creates."""

    def __init__(self, spawn: Callable[[], Awaitable[HostProcess]], send_request: SendRequest) -> None:
        self._spawn = spawn
        self._send_request = send_request
        self._idle: HostProcess | None = None
        self._limit = asyncio.Semaphore(PROCESSES_MAX)
        self._class_limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None

    async def request(self, message: messages.Request[R]) -> R:
        """Send a request to a process that has no other request at the same time. Raises RemoteError, CallTimeout."""
        async with self._limit_of(_class_of(message)), self._limit:
            host = await self._acquire()
            try:
                response = await self._send_request(host, message)
            except RemoteError:
                self._release(host)
                raise
            except BaseException:
                host.kill()
                raise
            self._release(host)
            return response

    def _limit_of(self, class_name: str) -> asyncio.Semaphore:
        limit = self._class_limits.get(class_name)
        if limit is None:
            limit = self._class_limits[class_name] = asyncio.Semaphore(PROCESSES_PER_CLASS_MAX)
        return limit

    def close(self) -> None:
        """End the idle process."""
        host, self._idle = self._idle, None
        if host is not None:
            host.channel.notify(messages.Exit())

    async def _acquire(self) -> HostProcess:
        host, self._idle = self._idle, None
        if self._timer is not None:
            self._timer.cancel()
        if host is None or host.ended.done() or host.channel.closed.is_set():
            return await self._spawn()
        return host

    def _release(self, host: HostProcess) -> None:
        """Keep the process for `IDLE_S`, and end the process that was idle before."""
        self.close()
        self._idle = host
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.close)


def _class_of(message: messages.Request[Any]) -> str:
    """Return the connector class that a request concerns, or an empty string if it concerns no class."""
    match message:
        case messages.AlterOffsets(spec):
            return spec.config.get("connector.class", "")
        case messages.DescribePlugin(_, plugin):
            return plugin
    return str(getattr(message, "config", {}).get("connector.class", ""))
