"""From a frame to its handler, and from a handler's answer to the wire.

A handler module declares `API_KEY`, `VERSIONS` and `handle(context, request, version)`, which returns the response or
an awaitable of it; `ADVERTISED` may widen what ApiVersions tells, `PARTS` says how a large request is divided.
Produce and Fetch are hot: they declare `handle_frame(broker, connection, frame, version, correlation_id)` instead and
decode for themselves.

Routes are made from the modules in `handlers`, so what is advertised is what is there.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import pkgutil
import sys
from collections.abc import Awaitable, Callable
from struct import Struct
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import API, Api, ApiKey
from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.framing import RequestHeader, encode_response, parse_request_header
from headrace_broker.server import handlers
from headrace_broker.server.network.connection import Connection
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.controller_channel import NoControllerError
from headrace_broker.server.network.large_requests import LARGE_FRAME_BYTES, LargeRequests, Parts
from headrace_broker.server.network.listeners import BROKER, CLIENTS, CONTROLLER
from headrace_broker.server.network.parked import Parked
from headrace_broker.server.network.receive_memory import ReceiveMemory
from headrace_broker.server.network.refusals import refused
from headrace_broker.server.network.wakefulness import Wakefulness
from headrace_broker.server.telling import Telling

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_HEADER_START = Struct(">hhi")
_API_VERSIONS_KEY = 18
_FORWARD_TIMEOUT_MS = 15_000
"""Less than the request.timeout.ms of clients: they are to hear why, not to lose their connection."""
_SHARE_OF_PEERS = 8
"""One connection in so many is kept back for listeners that clients do not use: the controllers', and a listener of
inter.broker.listener.name of its own.  Half of these are for replicas where they share the clients' listener."""
_FEW_THINGS_BYTES_MAX = 64 * 1024
"""What a request to a controller can take that does not divide: it is about one thing, or a few."""
_UNSENT_BYTES_MAX = 128 * 1024 * 1024
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024
"""A response lies in memory until its reader takes it: less than fetch.max.bytes is legal, and plenty."""
_RESPONSE_BYTES_MIN = 64 * 1024

HandleFrame = Callable[["Broker", Connection, memoryview, int, int], None]


class Route:
    """One API: its versions and its handler."""

    __slots__ = (
        "advertised",
        "api",
        "forward_timeout_ms",
        "frame_bytes_max",
        "handle",
        "handle_frame",
        "is_forwarded",
        "listeners",
        "parts",
        "refusal",
        "versions",
    )

    def __init__(self, module: ModuleType) -> None:
        self.api: Api = API[module.API_KEY]
        self.versions: tuple[int, int] = module.VERSIONS
        self.advertised: tuple[int, int] = getattr(module, "ADVERTISED", module.VERSIONS)
        self.listeners: frozenset[str] = getattr(module, "LISTENERS", CLIENTS)
        self.is_forwarded: bool = getattr(module, "IS_FORWARDED", False)
        self.forward_timeout_ms: int = getattr(module, "FORWARD_TIMEOUT_MS", _FORWARD_TIMEOUT_MS)
        self.refusal: ErrorCode = getattr(module, "REFUSAL", ErrorCode.REQUEST_TIMED_OUT)
        self.parts: tuple[Parts, ...] = getattr(module, "PARTS", ())
        is_for_few = CONTROLLER in self.listeners and not self.parts
        self.frame_bytes_max = _FEW_THINGS_BYTES_MAX if is_for_few else sys.maxsize
        self.handle: Callable[[RequestContext, Any, int], Any] | None = getattr(module, "handle", None)
        self.handle_frame: HandleFrame | None = getattr(module, "handle_frame", None)


Routes = dict[int, Route]


def load_routes() -> dict[str, Routes]:
    """A route for each module of the handlers package, by the kind of listener that it serves."""
    routes: dict[str, Routes] = {BROKER: {}, CONTROLLER: {}}
    for found in pkgutil.iter_modules(handlers.__path__):
        module = importlib.import_module(f"{handlers.__name__}.{found.name}")
        if hasattr(module, "API_KEY"):
            route = Route(module)
            for listener in route.listeners:
                routes[listener][int(module.API_KEY)] = route
    return routes


class RequestRouter:
    """The `Router` of every connection of a broker."""

    def __init__(
        self,
        node: Node,
        routes: dict[str, Routes],
        *,
        connections_max: int,
        wakefulness: Wakefulness,
        receive_memory: ReceiveMemory,
    ) -> None:
        self._node = node
        self.broker: Broker  # set once there is one: its listeners serve only then
        self._connections_max = connections_max
        self.routes = routes[BROKER]
        self.controller_routes = routes[CONTROLLER]
        self._controller_listeners = {listener.name for listener in node.config.controller_listeners}
        self._peer_listeners = set(self._controller_listeners)
        if len(node.config.listeners) > 1:
            self._peer_listeners.add(node.config.inter_broker_listener)
        self.connections: dict[Connection, None] = {}  # ordered: a seed's history must not hang on addresses
        self._per_host: dict[str, int] = {}
        self._unproven: dict[Connection, None] = {}  # beyond what clients may have: they may yet be replicas'
        self._idle_ms: dict[Connection, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.unsent_bytes = 0
        self.wakefulness = wakefulness
        self.receive_memory = receive_memory
        self.large_requests = LargeRequests()
        self._refusing = Telling()

    # -- connections -------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> bool:
        """Count the connection; False when there are too many.  Clients must not keep nodes from each other."""
        config = self._node.config
        kept_back = self._connections_max // _SHARE_OF_PEERS
        is_peer = connection.listener in self._peer_listeners
        if is_peer and len(self.connections) < self._connections_max:
            return self._count(connection)
        if not is_peer and self._per_host.get(connection.client_host, 0) >= config.max_connections_per_ip:
            self._warn_of(f"max.connections.per.ip={config.max_connections_per_ip}", connection)
            return False
        clients_max = min(config.max_connections, self._connections_max - kept_back)
        if not is_peer and len(self.connections) < clients_max:
            return self._count(connection)
        is_configured = not is_peer and clients_max == config.max_connections
        self._warn_of(f"max.connections={clients_max}" if is_configured else "ulimit -n", connection)
        if is_peer or connection.listener != config.inter_broker_listener or len(self._node.image.brokers) < 2:
            return False
        return self._count_unproven(connection, at_most=1 + clients_max // (2 * _SHARE_OF_PEERS))

    def _count_unproven(self, connection: Connection, at_most: int) -> bool:
        """Clients have all they may: let this one show that it is a replica's, until others come that may be."""
        others = len(self.connections) - len(self._unproven)
        room = min(at_most, self._connections_max - self._connections_max // (2 * _SHARE_OF_PEERS) - others)
        if room <= 0:
            return False
        if len(self._unproven) >= room:
            oldest = next(iter(self._unproven))
            self.disconnected(oldest)
            oldest.abort("")
        self._unproven[connection] = None
        return self._count(connection)

    def is_replicas(self, connection: Connection) -> None:
        """A replica fetches by that connection: it makes room for nobody."""
        self._unproven.pop(connection, None)

    def _count(self, connection: Connection) -> bool:
        self.connections[connection] = None
        self._per_host[connection.client_host] = self._per_host.get(connection.client_host, 0) + 1
        return True

    def _warn_of(self, limit: str, connection: Connection) -> None:
        if self._refusing.is_due(monotonic()):
            logger.warning(
                "refusing connection from %s and others: with %d open, %s allows no more",
                connection.peer,
                len(self.connections),
                limit,
            )

    def disconnected(self, connection: Connection) -> None:
        """Forget the connection and what is parked for it."""
        if connection not in self.connections:
            return
        self.connections.pop(connection, None)
        self._unproven.pop(connection, None)
        left = self._per_host[connection.client_host] - 1
        if left:
            self._per_host[connection.client_host] = left
        else:
            del self._per_host[connection.client_host]
        for operation in connection.parked:
            if isinstance(operation, Parked):
                self._node.waiting.cancel(operation)
        connection.parked.clear()

    def response_bytes_max(self) -> int:
        """How large an answer may become: less, the more of the others wait for peers that do not read."""
        return max(_RESPONSE_BYTES_MIN, min(_RESPONSE_BYTES_MAX, (_UNSENT_BYTES_MAX - self.unsent_bytes) // 4))

    def is_for_controllers(self, listener: str) -> bool:
        """Whether that listener is one of the quorum's."""
        return listener in self._controller_listeners

    def routes_of(self, listener: str) -> Routes:
        """What is served on that listener."""
        return self.controller_routes if listener in self._controller_listeners else self.routes

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Take one request; raises ProtocolError when the frame breaks the protocol."""
        api_key, version, correlation_id = _HEADER_START.unpack_from(frame)
        route = self.routes_of(connection.listener).get(api_key)
        if route is None or not route.versions[0] <= version <= route.versions[1]:
            self._refuse(connection, api_key, version, correlation_id)
        elif route.handle_frame is not None:
            route.handle_frame(self.broker, connection, frame, version, correlation_id)
        else:
            self._handle_message(connection, route, bytes(frame), version, correlation_id)

    def _handle_message(
        self, connection: Connection, route: Route, frame: bytes, version: int, correlation_id: int
    ) -> None:
        header = parse_request_header(frame)
        if len(frame) > route.frame_bytes_max:
            raise ProtocolError(f"{route.api.name} of {len(frame)} bytes, {route.frame_bytes_max} are plenty")
        if len(frame) > LARGE_FRAME_BYTES:
            self._handle_large(connection, route, frame, header, correlation_id)
            return
        # Bytes behind the message are ignored, as Kafka does: librdkafka 2.16 sends three behind a Metadata request for
        # all topics.
        request, _ = decoder(route.api.request, version)(frame, header.body_offset)
        context = RequestContext(self._node, connection.listener, header.client_id, connection.client_host, connection)
        try:
            answer = self.handler_of(route)(context, request, version)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  one request's failure is its connection's
            self._failed(connection, route.api.name, error)
            return
        if inspect.isawaitable(answer):
            slot = connection.hold()

            async def answer_later() -> None:
                slot.fill(encode_response(correlation_id, await answer, version))

            self.start(connection, route.api.name, answer_later)
        else:
            connection.reply(encode_response(correlation_id, answer, version))

    def handler_of(self, route: Route) -> Callable[[RequestContext, Any, int], Any]:
        """The route's handler; for what the active controller has to do, the way to it."""
        if route.is_forwarded:
            return lambda context, request, version: self._by_controller(route, context, request, version)
        assert route.handle is not None
        return route.handle

    async def _by_controller(self, route: Route, context: RequestContext, request: Any, version: int) -> Any:
        """Have the active controller answer; without one the answer is an error, and the client may try again.

        A controller's own listener serves only what this node can do as the active controller.
        """
        node = self._node
        try:
            if context.is_for_controllers:
                return await node.dispatch(request, version)
            timeout_ms = min(getattr(request, "timeout_ms", route.forward_timeout_ms), route.forward_timeout_ms)
            response = await node.channel.request(request, timeout_ms, version)
        except NoControllerError as error:
            return refused(request, version, route.refusal, error.message)
        except ApiError as error:
            return refused(request, version, error.code, error.message)
        if route.api.key != ApiKey.DESCRIBE_QUORUM:
            await node.settled(_topics_named(request))
        return response

    def _handle_large(
        self, connection: Connection, route: Route, frame: bytes, header: RequestHeader, correlation_id: int
    ) -> None:
        version, slot, handle = header.api_version, connection.hold(), self.handler_of(route)
        context = RequestContext(self._node, connection.listener, header.client_id, connection.client_host)
        self.receive_memory.keep(len(frame))

        async def answer() -> None:
            try:
                answering = self.large_requests.answer if route.parts else self.large_requests.answer_whole
                buffers = await answering(
                    lambda: decoder(route.api.request, version)(frame, header.body_offset)[0],
                    lambda part: handle(context, part, version),
                    lambda response: encode_response(correlation_id, response, version),
                    route.parts,
                )
            finally:
                self.receive_memory.let_go(len(frame))
            slot.fill(buffers)

        self.start(connection, route.api.name, answer)

    def start(self, connection: Connection, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run what answers a request of this connection, by the API's name; its failure is the connection's end."""
        task = asyncio.ensure_future(self._run(connection, name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ProtocolError as error:
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001  one request's failure is its connection's
            self._failed(connection, name, error)

    def _failed(self, connection: Connection, name: str, error: Exception) -> None:
        if isinstance(error, ApiError):  # said in one line, a traceback would add nothing
            connection.close(f"{name} could not be answered: {error}")
            return
        logger.error("%s from %s failed", name, connection.peer, exc_info=error)
        connection.close(f"{name} could not be answered")

    def _refuse(self, connection: Connection, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == _API_VERSIONS_KEY:
            from headrace_broker.server.handlers.api_versions import unsupported_version_response

            connection.reply(
                encode_response(correlation_id, unsupported_version_response(self.routes_of(connection.listener)), 0)
            )
            return
        api = API.get(api_key)
        name = api.name if api is not None else f"api key {api_key}"
        raise ProtocolError(f"{name} version {version} is not supported")

    # -- end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection; requests that run are abandoned, their clients see the connection end."""
        for task in self._tasks:
            task.cancel()
        self.large_requests.close()
        for connection in list(self.connections):
            connection.close()

    def relieve_memory(self) -> None:
        """Cut off who holds memory for a request that does not come in while others wait; call it every second."""
        for holder in self.receive_memory.holders():
            if isinstance(holder, Connection) and holder.hoards_memory():
                holder.abort("its request does not come in, and others wait for the memory (queued.max.request.bytes)")

    def sweep(self, step_ms: int) -> None:
        """Housekeeping: shrink idle buffers, close connections idle for longer than connections.max.idle.ms.

        Peers that do not read what they have asked for are cut off when they hold too much memory together.
        """
        if self.unsent_bytes > _UNSENT_BYTES_MAX:
            for connection in [connection for connection in self.connections if connection.is_stuck]:
                connection.abort("it does not read its answers, and too many of those wait")
        limit_ms = self._node.config.connections_max_idle_ms
        for connection in list(self.connections):
            if connection.sweep():
                self._idle_ms.pop(connection, None)
                continue
            idle_ms = self._idle_ms.get(connection, 0) + step_ms
            self._idle_ms[connection] = idle_ms
            if 0 <= limit_ms < idle_ms:
                connection.close()
        for connection in self._idle_ms.keys() - self.connections.keys():
            del self._idle_ms[connection]


def _topics_named(request: Any) -> list[str]:
    """The names in a request that makes topics or partitions."""
    return [topic.name for topic in getattr(request, "topics", ()) if getattr(topic, "name", None) is not None]
