"""Connections to the other nodes of the quorum: one each, made when wanted, with requests that end in an answer or not.

When a connection is lost it is tried again at once: a node that refuses is dead, which its peers need not wait to
find out.  A node that does not answer may be cut off or slow, and nothing is concluded from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import ClientError, UnsupportedVersionError
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.membership.probing import was_refused

logger = logging.getLogger(__name__)

_TRIES = 10
_PAUSE_S = 0.02

OnAnswer = Callable[[Response | None], None]


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
        self._connections: dict[int, Connection] = {}
        self._connecting: dict[int, asyncio.Task[Connection | None]] = {}
        self.faults: dict[int, str] = {}
        """Why a node that was tried last cannot be reached."""
        self._closed = False
        self.refusing: set[int] = set()
        """The nodes whose processes were gone when they were last tried, and that were not heard of since."""

    @property
    def open_connections(self) -> int:
        """How many nodes there is a connection to."""
        return sum(connection.is_open for connection in self._connections.values())

    def send(self, node_id: int, request: Request[Any], on_answer: OnAnswer) -> None:
        """Send a request; `on_answer` is called once, with None when there is no answer."""
        connection = self._connections.get(node_id)
        if connection is not None and connection.is_open:
            self._send_on(connection, request, on_answer)
            return
        self._connect(node_id).add_done_callback(lambda task: self._connected(task, request, on_answer))

    def heard(self, node_id: int) -> None:
        """A node asks for something: it is there again, though nothing was sent to it.  A leader seldom has to."""
        self.faults.pop(node_id, None)
        self.refusing.discard(node_id)

    def _connected(self, task: asyncio.Task[Connection | None], request: Request[Any], on_answer: OnAnswer) -> None:
        if task.cancelled():
            return  # this node ends: an answer, even none, would have the core ask again
        connection = task.result()
        if connection is None or not connection.is_open:
            on_answer(None)
        else:
            self._send_on(connection, request, on_answer)

    def _send_on(self, connection: Connection, request: Request[Any], on_answer: OnAnswer) -> None:
        try:
            version = connection.version_for(type(request))
            connection.send(request, version, lambda response, error: on_answer(response))
        except ClientError as error:
            logger.warning("%s", error)
            on_answer(None)

    def _connect(self, node_id: int) -> asyncio.Task[Connection | None]:
        task = self._connecting.get(node_id)
        if task is None:
            task = self._connecting[node_id] = self._loop.create_task(self._open(node_id))
        return task

    async def _open(self, node_id: int) -> Connection | None:
        try:
            for _ in range(_TRIES):
                if node_id not in self._addresses:  # a leader that only the others' files name; QuorumWatch tells of it
                    await asyncio.sleep(_PAUSE_S)
                    return None
                try:
                    connection = await self._connection_to(node_id)
                except ClientError as error:
                    if self._note_failure(node_id, error):
                        return None
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._connections[node_id] = connection
                    self.heard(node_id)
                    return connection
            return None
        finally:
            self._connecting.pop(node_id, None)

    async def _connection_to(self, node_id: int) -> Connection:
        """Raises ClientError, also when a broker's port for clients is at the address."""
        host, port = self._addresses[node_id]
        connection = await Connection.open(
            host,
            port,
            node_id=node_id,
            client_id="headrace-quorum",
            request_timeout_ms=self._request_timeout_ms,
            setup_timeout_ms=self._setup_timeout_ms,
            on_closed=lambda: self._lost(node_id),
        )
        try:
            connection.version_for(VoteRequest)
        except UnsupportedVersionError:
            connection.close()
            raise
        return connection

    def _note_failure(self, node_id: int, error: ClientError) -> bool:
        """False when the connection was made and cut off at once: the process may be about to go."""
        is_refused = was_refused(error.__cause__)
        is_misled = isinstance(error, UnsupportedVersionError)
        silent = "is a broker's port for clients, not a controller's" if is_misled else "does not answer"
        self.faults[node_id] = "refuses connections" if is_refused else silent
        if is_refused:
            self.refusing.add(node_id)
            if not self._closed:
                self._on_refused(node_id)
            return True
        self.refusing.discard(node_id)
        return is_misled or not (error.__cause__ is None or isinstance(error.__cause__, ConnectionError))

    def _lost(self, node_id: int) -> None:
        self._connections.pop(node_id, None)
        if not self._closed and node_id not in self._connecting:
            self._connect(node_id)

    def close(self) -> None:
        """Close every connection; what is asked stays unanswered."""
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close()
