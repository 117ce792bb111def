"""Routes each request frame to its handler, and sends the handler's response.

A handler module declares `API_KEY`, `VERSIONS` and `handle(context, request, version)`, which returns the response or
an awaitable that returns the response. A module may also declare:

- `ADVERTISED`: the version range in ApiVersions responses, if it is wider than `VERSIONS`
- `REQUEST_SPLITS`: the arrays by which a large request is split
- `IS_FORWARDED`: whether brokers forward the request to the active controller
- `reject_items(context, request)`: removes the items that the broker rejects from a request, before the broker forwards
  the request; returns the results of these items

Produce and Fetch are the most frequent requests, so their modules declare `handle_frame(broker, connection, frame,
version, correlation_id)` instead of `handle` and decode the frame themselves.

The routes are built from the modules in `handlers`, so the broker advertises exactly the APIs it implements.
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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import API, Api, ApiKey
from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.framing import RequestHeader, encode_response, parse_request_header
from headrace_broker.server import handlers
from headrace_broker.server.network.busy_poll import BusyPoll
from headrace_broker.server.network.connection import Connection
from headrace_broker.server.network.connection_quotas import ConnectionQuotas
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.controller_channel import NoControllerError
from headrace_broker.server.network.delayed_operations import DelayedOperation
from headrace_broker.server.network.error_responses import error_response
from headrace_broker.server.network.foreign_protocols import ForeignProtocols
from headrace_broker.server.network.large_requests import LARGE_FRAME_BYTES, LargeRequests, RequestSplit
from headrace_broker.server.network.listener_types import BROKER, BROKER_ONLY, CONTROLLER
from headrace_broker.server.network.request_memory import RequestMemoryPool

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_HEADER_START = Struct(">hhi")
_API_VERSIONS_KEY = 18
_FORWARD_TIMEOUT_MS = 15_000
"""The timeout of a forwarded request.

It is less than the clients' request.timeout.ms, so that clients receive an error.
"""
_UNSPLIT_FRAME_BYTES_MAX = 64 * 1024
"""Size limit of requests that controllers handle and that cannot be split. They name only a few items each."""
_UNSENT_BYTES_MAX = 128 * 1024 * 1024
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024
"""Size limits of responses, in bytes. A response stays in memory until the client has read it."""
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
        "no_controller_error",
        "reject_items",
        "request_splits",
        "versions",
    )

    def __init__(self, module: ModuleType) -> None:
        self.api: Api = API[module.API_KEY]
        self.versions: tuple[int, int] = module.VERSIONS
        self.advertised: tuple[int, int] = getattr(module, "ADVERTISED", module.VERSIONS)
        self.listeners: frozenset[str] = getattr(module, "LISTENERS", BROKER_ONLY)
        self.is_forwarded: bool = getattr(module, "IS_FORWARDED", False)
        self.forward_timeout_ms: int = getattr(module, "FORWARD_TIMEOUT_MS", _FORWARD_TIMEOUT_MS)
        self.no_controller_error: ErrorCode = getattr(module, "NO_CONTROLLER_ERROR", ErrorCode.REQUEST_TIMED_OUT)
        self.reject_items: Callable[[RequestContext, Any], list[Any]] | None = getattr(module, "reject_items", None)
        self.request_splits: tuple[RequestSplit, ...] = getattr(module, "REQUEST_SPLITS", ())
        is_limited = CONTROLLER in self.listeners and not self.request_splits
        self.frame_bytes_max = _UNSPLIT_FRAME_BYTES_MAX if is_limited else sys.maxsize
        self.handle: Callable[[RequestContext, Any, int], Any] | None = getattr(module, "handle", None)
        self.handle_frame: HandleFrame | None = getattr(module, "handle_frame", None)


Routes = dict[int, Route]


def load_routes() -> dict[str, Routes]:
    """Build a route for each module of the handlers package, grouped by listener type."""
    routes: dict[str, Routes] = {BROKER: {}, CONTROLLER: {}}
    for found in pkgutil.iter_modules(handlers.__path__):
        module = importlib.import_module(f"{handlers.__name__}.{found.name}")
        if hasattr(module, "API_KEY"):
            route = Route(module)
            for listener in route.listeners:
                routes[listener][int(module.API_KEY)] = route
    return routes


class RequestRouter:
    """The `Router` of all connections of a node."""

    def __init__(
        self,
        node: Node,
        routes: dict[str, Routes],
        *,
        connections_max: int,
        busy_poll: BusyPoll,
        request_memory: RequestMemoryPool,
    ) -> None:
        self._node = node
        self.broker: Broker  # set after the broker is created and before its listeners accept connections
        self.routes = routes[BROKER]
        self.controller_routes = routes[CONTROLLER]
        self._controller_listeners = {listener.name for listener in node.config.controller_listeners}
        self.connection_quotas = ConnectionQuotas(
            node.config,
            connections_max,
            has_other_brokers=lambda: len(node.image.brokers) > 1,
            on_evict=self.disconnected,
        )
        self.connections = self.connection_quotas.connections
        self._idle_ms: dict[Connection, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.unsent_bytes = 0
        self.busy_poll = busy_poll
        self.request_memory = request_memory
        self.foreign_protocols = ForeignProtocols()
        self.large_requests = LargeRequests()

    # -- connections -------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> bool:
        """Accept a new connection. Returns False if the connection quotas do not allow it."""
        return self.connection_quotas.try_add(connection)

    def disconnected(self, connection: Connection) -> None:
        """Remove a closed connection, and cancel its delayed operations."""
        if not self.connection_quotas.remove(connection):
            return
        for operation in connection.delayed_operations:
            if isinstance(operation, DelayedOperation):
                self._node.purgatory.cancel(operation)
        connection.delayed_operations.clear()

    def response_bytes_max(self) -> int:
        """Return the size limit of a response.

        The limit is lower if many responses wait for clients that do not read.
        """
        return max(_RESPONSE_BYTES_MIN, min(_RESPONSE_BYTES_MAX, (_UNSENT_BYTES_MAX - self.unsent_bytes) // 4))

    def is_controller_listener(self, listener: str) -> bool:
        """Return whether this is the name of a controller listener."""
        return listener in self._controller_listeners

    def routes_for(self, listener: str) -> Routes:
        """Return the routes of the APIs that are served on this listener."""
        return self.controller_routes if listener in self._controller_listeners else self.routes

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Handle one request. Raises ProtocolError if the frame violates the protocol."""
        api_key, version, correlation_id = _HEADER_START.unpack_from(frame)
        route = self.routes_for(connection.listener).get(api_key)
        if route is None or not route.versions[0] <= version <= route.versions[1]:
            self._reject_version(connection, api_key, version, correlation_id)
        elif route.handle_frame is not None:
            route.handle_frame(self.broker, connection, frame, version, correlation_id)
        else:
            self._handle_message(connection, route, bytes(frame), version, correlation_id)

    def _handle_message(
        self, connection: Connection, route: Route, frame: bytes, version: int, correlation_id: int
    ) -> None:
        header = parse_request_header(frame)
        if len(frame) > route.frame_bytes_max:
            raise ProtocolError(
                f"{route.api.name} request of {len(frame)} bytes exceeds the limit of {route.frame_bytes_max}"
            )
        if len(frame) > LARGE_FRAME_BYTES:
            self._handle_large(connection, route, frame, header, correlation_id)
            return
        # Bytes after the message are ignored, as in Kafka: librdkafka 2.16 sends three of them after a Metadata request
        # for all topics.
        request, _ = decoder(route.api.request, version)(frame, header.body_offset)
        context = RequestContext(self._node, connection.listener, header.client_id, connection.client_host, connection)
        try:
            response = self.handler_of(route)(context, request, version)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  a failed request closes its connection, nothing else
            self._close_failed(connection, route.api.name, error)
            return
        if inspect.isawaitable(response):
            slot = connection.reserve_response_and_mute()

            async def respond_later() -> None:
                slot.fill(encode_response(correlation_id, await response, version))

            self.run_for_connection(connection, route.api.name, respond_later)
        else:
            connection.reply(encode_response(correlation_id, response, version))

    def handler_of(self, route: Route) -> Callable[[RequestContext, Any, int], Any]:
        """Return the route's handler. For an API of the active controller, return a function that forwards requests."""
        if route.is_forwarded:
            forward = self._forward if route.reject_items is None else self._forward_accepted
            return lambda context, request, version: forward(route, context, request, version)
        assert route.handle is not None
        return route.handle

    async def _forward(self, route: Route, context: RequestContext, request: Any, version: int) -> Any:
        """Forward the request to the active controller.

        If no controller is active, respond with the route's `no_controller_error`. A request on a controller listener
        is not forwarded: this node handles the request if this node is the active controller.
        """
        node = self._node
        try:
            if context.is_controller_listener:
                return await node.dispatch(request, version)
            timeout_ms = min(getattr(request, "timeout_ms", route.forward_timeout_ms), route.forward_timeout_ms)
            response = await node.channel.request(request, timeout_ms, version)
        except NoControllerError as error:
            return error_response(request, version, route.no_controller_error, error.message)
        except ApiError as error:
            return error_response(request, version, error.code, error.message)
        if route.api.key != ApiKey.DESCRIBE_QUORUM:
            await node.wait_for_committed_metadata(_topics_named(request))
        return response

    async def _forward_accepted(self, route: Route, context: RequestContext, request: Any, version: int) -> Any:
        """Forward the items of the request that this broker accepts. Return an error for each of the other items."""
        assert route.reject_items is not None
        rejected = [] if context.is_controller_listener else route.reject_items(context, request)
        response = await self._forward(route, context, request, version)
        response.responses.extend(rejected)
        return response

    def _handle_large(
        self, connection: Connection, route: Route, frame: bytes, header: RequestHeader, correlation_id: int
    ) -> None:
        version, slot, handle = header.api_version, connection.reserve_response_and_mute(), self.handler_of(route)
        context = RequestContext(self._node, connection.listener, header.client_id, connection.client_host)
        self.request_memory.add_in_process(connection, len(frame))

        async def respond() -> None:
            try:
                large_requests = self.large_requests
                run = large_requests.handle_split if route.request_splits else large_requests.handle_unsplit
                buffers = await run(
                    lambda: decoder(route.api.request, version)(frame, header.body_offset)[0],
                    lambda part: handle(context, part, version),
                    lambda response: encode_response(correlation_id, response, version),
                    route.request_splits,
                )
            finally:
                self.request_memory.release_in_process(connection)
            slot.fill(buffers)

        self.run_for_connection(connection, route.api.name, respond)

    def run_for_connection(self, connection: Connection, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, which responds to a request of this connection. If `work` fails, close the connection.

        `name` is the API's name, for the log line about a failure.
        """
        task = asyncio.ensure_future(self._run(connection, name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ProtocolError as error:
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001  a failed request closes its connection, nothing else
            self._close_failed(connection, name, error)

    def _close_failed(self, connection: Connection, name: str, error: Exception) -> None:
        if isinstance(error, ApiError):  # log one line, because the traceback of an ApiError does not help
            connection.close(f"{name} request failed: {error}")
            return
        logger.error("Connection from %s: %s request failed", connection.peer, name, exc_info=error)
        connection.close(f"{name} request failed")

    def _reject_version(self, connection: Connection, api_key: int, version: int, correlation_id: int) -> None:
        if api_key == _API_VERSIONS_KEY:
            from headrace_broker.server.handlers.api_versions import unsupported_version_response

            connection.reply(
                encode_response(correlation_id, unsupported_version_response(self.routes_for(connection.listener)), 0)
            )
            return
        api = API.get(api_key)
        name = api.name if api is not None else f"api key {api_key}"
        raise ProtocolError(f"{name} version {version} is not supported")

    # -- end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections and cancel the requests in progress. The clients see a disconnect."""
        for task in self._tasks:
            task.cancel()
        self.large_requests.close()
        for connection in list(self.connections):
            connection.close()

    def close_stalled_connections(self) -> None:
        """If other connections wait for request memory, close connections that hold memory but receive no data.

        The node calls this method every second.
        """
        for holder in self.request_memory.holders():
            if isinstance(holder, Connection) and holder.detect_stalled_request():
                holder.abort(
                    "the client stopped sending its request while other requests wait for memory "
                    "(queued.max.request.bytes)"
                )

    def sweep(self, step_ms: int) -> None:
        """Shrink idle buffers, and close connections that are idle for longer than connections.max.idle.ms.

        Also close connections whose clients do not read their responses, if the responses use too much memory in total.
        The caller calls this method every `step_ms`.
        """
        if self.unsent_bytes > _UNSENT_BYTES_MAX:
            for connection in [connection for connection in self.connections if connection.is_stuck]:
                connection.abort("the client does not read its responses, and unsent responses use too much memory")
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
    """Return the topics in a request that creates topics or partitions."""
    return [topic.name for topic in getattr(request, "topics", ()) if getattr(topic, "name", None) is not None]
