"""Requests from a broker to the active controller, wherever that is: here, on another node, or not known yet.

A request is sent again to the new controller when the old one is gone, silent for too long, or says that it is none.
A broker has two channels: on one it hands on what clients ask, which may take long and is better not asked twice; on
the other, where silence counts soon, it says what it can repeat: that it lives, and who is in sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import ClientError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.network.refusals import error_code_of

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=Response)

_PAUSE_S = 0.02
_SILENCE_MS = 30_000
_SETUP_TIMEOUT_MS = 1_000


class NoControllerError(ApiError):
    """No active controller could be reached in time."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class ControllerChannel:
    """The way to the active controller; lives on the event loop."""

    def __init__(
        self,
        node_id: int,
        addresses: Mapping[int, tuple[str, int]],
        leader_id: Callable[[], int],
        handle_here: Callable[[Request[Any], int], Awaitable[Response]] | None,
        why_none: Callable[[], str] = lambda: "the quorum has no leader",
        *,
        silence_ms: int = _SILENCE_MS,
    ) -> None:
        self._node_id = node_id
        self._addresses = dict(addresses)
        self._leader_id = leader_id
        self._handle_here = handle_here
        self._why = why_none
        self._silence_ms = silence_ms
        self._loop = asyncio.get_running_loop()
        self._connection: tuple[int, Connection] | None = None
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()

    def leader_changed(self) -> None:
        """The quorum has another leader, or none."""
        self._changed.set()
        if self._connection is not None and self._connection[0] != self._leader_id():
            self._connection[1].close()
            self._connection = None

    async def request(self, request: Request[ResponseT], timeout_ms: int, version: int | None = None) -> ResponseT:
        """Ask the active controller, in the newest version unless one is given.  Raises NoControllerError."""
        spoken = request.__versions__[1] if version is None else version
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            response = await self._attempt(request, spoken)
            if response is not None and error_code_of(response) != ErrorCode.NOT_CONTROLLER:
                return response
            left = deadline - self._loop.time()
            if left <= 0:
                raise NoControllerError(self._no_controller(timeout_ms))
            await self._wait_for_change(min(left, _PAUSE_S))

    def _no_controller(self, timeout_ms: int) -> str:
        leader_id = self._leader_id()
        if leader_id < 0:
            return f"no active controller within {timeout_ms} ms: {self._why()}"
        return f"the active controller, node {leader_id}, did not answer within {timeout_ms} ms"

    async def _wait_for_change(self, timeout_s: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass  # the same leader may have become active meanwhile

    async def _attempt(self, request: Request[ResponseT], version: int) -> ResponseT | None:
        leader_id = self._leader_id()
        if leader_id < 0:
            return None
        if leader_id == self._node_id and self._handle_here is not None:
            try:
                return await self._handle_here(request, version)  # type: ignore[return-value]
            except ApiError as error:
                if error.code != ErrorCode.NOT_CONTROLLER:
                    raise
                return None
        if leader_id not in self._addresses:
            return None
        try:
            connection = await self._connect(leader_id)
            return await connection.request(request, version=version)
        except ClientError as error:
            logger.debug("the controller %d did not answer: %s", leader_id, error)
            return None

    async def _connect(self, leader_id: int) -> Connection:
        async with self._opening:
            known = self._connection
            if known is not None and known[0] == leader_id and known[1].is_open:
                return known[1]
            host, port = self._addresses[leader_id]
            connection = await Connection.open(
                host,
                port,
                node_id=leader_id,
                client_id=f"headrace-broker-{self._node_id}",
                request_timeout_ms=self._silence_ms,
                setup_timeout_ms=_SETUP_TIMEOUT_MS,
            )
            self._connection = (leader_id, connection)
            return connection

    def close(self) -> None:
        """Close the connection; what is asked fails."""
        if self._connection is not None:
            self._connection[1].close()
