"""Connections to the other voters of the quorum: one per voter, opened on demand.

If a connection breaks, this node opens it again immediately. If the voter refuses the new connection, the voter's
process is dead, and this node does not wait for a timeout. A voter that does not respond may be alive, but slow or
unreachable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError, UnsupportedVersionError
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.liveness.process_probe import is_connection_refused

logger = logging.getLogger(__name__)

_TRIES = 10
_PAUSE_S = 0.02

OnResponse = Callable[[Response | None], None]


class Peers:
    """The addresses of the voters, and the connections to them."""

    def __init__(
        self,
        addresses: Mapping[int, tuple[str, int]],
        on_refused: Callable[[int], None],
        *,
        request_timeout_ms: int,
        setup_timeout_ms: int,
    ) -> None:
        self._addresses = dict(addresses)
        self._on_refused = on_refused
        self._request_timeout_ms = request_timeout_ms
        self._setup_timeout_ms = setup_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, BrokerConnection] = {}
        self._connecting: dict[int, asyncio.Task[BrokerConnection | None]] = {}
        self.connection_errors: dict[int, str] = {}
        """For each node, the reason why the last attempt to connect failed."""
        self._closed = False
        self.refused_nodes: set[int] = set()
        """Nodes that refused the last connection attempt and have sent no request since: their processes are dead."""

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return sum(connection.is_open for connection in self._connections.values())

    def send(self, node_id: int, request: Request[Any], on_response: OnResponse) -> None:
        """Send a request to the voter `node_id`.

        `on_response` is called once: with the response, or with None if the request fails.
        """
        connection = self._connections.get(node_id)
        if connection is not None and connection.is_open:
            self._send_on(connection, request, on_response)
            return
        self._connect(node_id).add_done_callback(lambda task: self._connected(task, request, on_response))

    def on_request_from(self, node_id: int) -> None:
        """Mark a node as alive because it sent a request.

        The request may be the only sign that the node is alive. For example, a leader seldom connects to its followers.
        """
        self.connection_errors.pop(node_id, None)
        self.refused_nodes.discard(node_id)

    def _connected(
        self, task: asyncio.Task[BrokerConnection | None], request: Request[Any], on_response: OnResponse
    ) -> None:
        if task.cancelled():
            # this node is stopping, and any response, even None, would make the state machine send another request
            return
        connection = task.result()
        if connection is None or not connection.is_open:
            on_response(None)
        else:
            self._send_on(connection, request, on_response)

    def _send_on(self, connection: BrokerConnection, request: Request[Any], on_response: OnResponse) -> None:
        try:
            version = connection.version_for(type(request))
            connection.send(request, version, lambda response, error: on_response(response))
        except ClientError as error:
            logger.warning("Metadata quorum: %s was not sent: %s", type(request).__name__, error)
            on_response(None)

    def _connect(self, node_id: int) -> asyncio.Task[BrokerConnection | None]:
        task = self._connecting.get(node_id)
        if task is None:
            task = self._connecting[node_id] = self._loop.create_task(self._open(node_id))
        return task

    async def _open(self, node_id: int) -> BrokerConnection | None:
        try:
            for _ in range(_TRIES):
                if node_id not in self._addresses:  # the leader is not a configured voter; QuorumWatch logs it
                    await asyncio.sleep(_PAUSE_S)
                    return None
                try:
                    connection = await self._connection_to(node_id)
                except ClientError as error:
                    if self._record_failure(node_id, error):
                        return None
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._connections[node_id] = connection
                    self.on_request_from(node_id)
                    return connection
            return None
        finally:
            self._connecting.pop(node_id, None)

    async def _connection_to(self, node_id: int) -> BrokerConnection:
        """Open and return a connection to the voter `node_id`.

        Raises ClientError, for example if the voter's configured address is a broker's client listener.
        """
        host, port = self._addresses[node_id]
        connection = await BrokerConnection.open(
            host,
            port,
            node_id=node_id,
            client_id="headrace-quorum",
            request_timeout_ms=self._request_timeout_ms,
            setup_timeout_ms=self._setup_timeout_ms,
            on_closed=lambda: self._on_closed(node_id),
        )
        try:
            connection.version_for(VoteRequest)
        except UnsupportedVersionError:
            connection.close()
            raise
        return connection

    def _record_failure(self, node_id: int, error: ClientError) -> bool:
        """Store the reason for a failed connection to node `node_id`. Return False if the caller should retry.

        The caller should retry if the node accepted the connection and then closed the connection immediately. In this
        case, the node's process may be exiting.
        """
        is_refused = is_connection_refused(error.__cause__)
        is_client_listener = isinstance(error, UnsupportedVersionError)
        not_refused = (
            "is a client listener of a broker, not a controller listener" if is_client_listener else "does not respond"
        )
        self.connection_errors[node_id] = "refuses connections" if is_refused else not_refused
        if is_refused:
            self.refused_nodes.add(node_id)
            if not self._closed:
                self._on_refused(node_id)
            return True
        self.refused_nodes.discard(node_id)
        return is_client_listener or not (error.__cause__ is None or isinstance(error.__cause__, ConnectionError))

    def _on_closed(self, node_id: int) -> None:
        self._connections.pop(node_id, None)
        if not self._closed and node_id not in self._connecting:
            self._connect(node_id)

    def close(self) -> None:
        """Close every connection; pending requests get no response."""
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close()
