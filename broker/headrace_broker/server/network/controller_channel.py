"""Sends requests from a broker to the active controller, which may be this node, another node, or unknown.

A request is retried on the new controller when the old controller disconnects, does not respond in time, or responds
NOT_CONTROLLER. A broker has two channels. The first channel forwards client requests with a long timeout, because they
may be slow and should not be sent twice. The second channel sends the broker's own requests (heartbeats,
AlterPartition) with a short timeout, because these requests are safe to repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.network.error_responses import first_error_code

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=Response)

_RETRY_BACKOFF_S = 0.02
_REQUEST_TIMEOUT_MS = 30_000
_SETUP_TIMEOUT_MS = 1_000


class NoControllerError(ApiError):
    """No active controller responded in time."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class ControllerChannel:
    """Sends requests to the active controller. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        addresses: Mapping[int, tuple[str, int]],
        leader_id: Callable[[], int],
        handle_locally: Callable[[Request[Any], int], Awaitable[Response]] | None,
        describe_no_leader: Callable[[], str] = lambda: "the quorum has no leader",
        *,
        request_timeout_ms: int = _REQUEST_TIMEOUT_MS,
    ) -> None:
        self._node_id = node_id
        self._addresses = dict(addresses)
        self._leader_id = leader_id
        self._handle_here = handle_locally
        self._describe_no_leader = describe_no_leader
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._connection: tuple[int, BrokerConnection] | None = None
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()

    def leader_changed(self) -> None:
        """Handle a change of the quorum's leader: close the connection to the previous leader."""
        self._changed.set()
        if self._connection is not None and self._connection[0] != self._leader_id():
            self._connection[1].close()
            self._connection = None

    async def request(self, request: Request[ResponseT], timeout_ms: int, version: int | None = None) -> ResponseT:
        """Send the request in this version (default: the newest), with retries. Raises NoControllerError."""
        request_version = request.__versions__[1] if version is None else version
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            response = await self._attempt(request, request_version)
            if response is not None and first_error_code(response) != ErrorCode.NOT_CONTROLLER:
                return response
            left = deadline - self._loop.time()
            if left <= 0:
                raise NoControllerError(self._no_controller(timeout_ms))
            await self._wait_for_change(min(left, _RETRY_BACKOFF_S))

    def _no_controller(self, timeout_ms: int) -> str:
        leader_id = self._leader_id()
        if leader_id < 0:
            return f"no active controller within {timeout_ms} ms: {self._describe_no_leader()}"
        return f"the active controller, node {leader_id}, did not respond within {timeout_ms} ms"

    async def _wait_for_change(self, timeout_s: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass  # retry with the same leader, because it may have become the active controller

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
            logger.debug("Controller %d: request failed, retrying: %s", leader_id, error)
            return None

    async def _connect(self, leader_id: int) -> BrokerConnection:
        async with self._opening:
            known = self._connection
            if known is not None and known[0] == leader_id and known[1].is_open:
                return known[1]
            host, port = self._addresses[leader_id]
            connection = await BrokerConnection.open(
                host,
                port,
                node_id=leader_id,
                client_id=f"headrace-broker-{self._node_id}",
                request_timeout_ms=self._request_timeout_ms,
                setup_timeout_ms=_SETUP_TIMEOUT_MS,
            )
            self._connection = (leader_id, connection)
            return connection

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        if self._connection is not None:
            self._connection[1].close()
