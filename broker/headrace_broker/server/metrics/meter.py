"""Counts requests and records for the metrics page.

A node without metrics listeners has no meter and no overhead. A meter replaces the router's `handle` and `handler_of`
and the broker's `append`, `read` and `on_partition_error` with methods that also measure. For each client connection,
the meter creates a `_MeteredConnection`, which records the times at which requests arrive and responses are sent.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import cache
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_broker.log.log import AppendInfo, LogRead
from headrace_broker.log.validator import AppendOrigin, RecordsCheck
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.notation import Message, Response, StructField
from headrace_broker.server.metrics.sampled_rates import Rate
from headrace_broker.server.network.connection import Buffers, Connection, ConnectionLimits, ResponseSlot
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.network.routing import RequestRouter, Route

_HEADER_START = Struct(">hh")
_LATENCIES_MAX = 1024
_DELETED_TOPICS_MAX = 100
_UNSUPPORTED = -1


class Latencies:
    """Measured latencies: their number since the start, and the last thousand latencies in ms."""

    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms: deque[float] = deque(maxlen=_LATENCIES_MAX)

    def record(self, seconds: float) -> None:
        self.count += 1
        self.last_ms.append(seconds * 1000)


class RequestMetrics:
    """The metrics of one API, as in Kafka's RequestMetrics: requests by version, errors in responses, and times."""

    __slots__ = (
        "by_version",
        "errors",
        "local_time",
        "remote_time",
        "request_queue_time",
        "response_queue_time",
        "response_send_time",
        "total_time",
    )

    def __init__(self) -> None:
        self.by_version: dict[int, int] = {}
        self.errors: Counter[str] = Counter()
        self.request_queue_time = Latencies()  # from the read of the request's last byte to the call of the handler
        self.local_time = Latencies()  # in the handler, until the handler returns or waits
        self.remote_time = Latencies()  # in the purgatory, or waiting for other nodes
        self.response_queue_time = Latencies()  # while the response waits for the responses to earlier requests
        self.response_send_time = Latencies()  # while the response is written to the socket
        self.total_time = Latencies()


class TopicMetrics:
    """The metrics of one topic, as in Kafka's BrokerTopicMetrics."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed",
        "fetched",
        "fetches_failed",
        "messages_in",
        "produced",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produced = 0
        self.failed = 0
        self.fetched = 0
        self.fetches_failed = 0

    def add(self, other: TopicMetrics) -> None:
        """Add the counts of another topic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Meter:
    """The request and topic metrics of one node. All methods run on the event loop."""

    def __init__(self, router: RequestRouter) -> None:
        self.requests: dict[int, RequestMetrics] = {}
        self.topics: dict[str, TopicMetrics] = {}
        self.deleted_topics = TopicMetrics()
        self._hosted_topics: Collection[str] = ()
        self.connections_opened: dict[str, Rate] = {}
        self.connections_closed: dict[str, Rate] = {}
        self._router = router
        self._handle, self._handler_of = router.handle, router.handler_of
        router.handle = self._metered_handle  # type: ignore[method-assign]
        router.handler_of = self._metered_handler_of  # type: ignore[method-assign]

    def instrument_broker(self, broker: Broker) -> None:
        """Start to measure the broker's appends and reads."""
        self._hosted_topics = broker.partitions.by_name
        self._append, self._read = broker.append, broker.read
        broker.append = self._metered_append  # type: ignore[method-assign]
        broker.read = self._metered_read  # type: ignore[method-assign]
        broker.on_partition_error = self._count_error  # type: ignore[method-assign]

    # -- connections and requests --------------------------------------------------------------------------------

    def new_connection(self, listener: str, limits: ConnectionLimits) -> Connection:
        """Create a connection whose requests and responses are measured."""
        now_s = perf_counter()
        self.connections_opened.setdefault(listener, Rate(now_s)).add(1, now_s)
        return _MeteredConnection(self._router, listener, limits, self)

    def disconnected(self, listener: str) -> None:
        """Count a closed connection of the listener."""
        now_s = perf_counter()
        self.connections_closed.setdefault(listener, Rate(now_s)).add(1, now_s)

    def request_metrics(self, api_key: int) -> RequestMetrics:
        """Return the metrics of one API."""
        metrics = self.requests.get(api_key)
        if metrics is None:
            metrics = self.requests[api_key] = RequestMetrics()
        return metrics

    def _metered_handle(self, connection: Connection, frame: memoryview) -> None:
        api_key, version = self._supported(connection.listener, *_HEADER_START.unpack_from(frame))
        metrics = self.request_metrics(api_key)
        metrics.by_version[version] = metrics.by_version.get(version, 0) + 1
        started_s = perf_counter()
        request = _RequestTimer(metrics, started_s)
        if isinstance(connection, _MeteredConnection):
            connection.request = request
            metrics.request_queue_time.record(started_s - connection.received_s)
        try:
            self._handle(connection, frame)
        except ProtocolError:
            metrics.errors[ErrorCode.INVALID_REQUEST.name] += 1
            raise
        finally:
            request.local_s = perf_counter() - started_s
            metrics.local_time.record(request.local_s)

    def _supported(self, listener: str, api_key: int, version: int) -> tuple[int, int]:
        """Return the API key and version, with unsupported numbers replaced by `_UNSUPPORTED`.

        A client can send any number, and without the replacement each number would add metrics.
        """
        route = self._router.routes_for(listener).get(api_key)
        if route is None:
            return _UNSUPPORTED, _UNSUPPORTED
        return api_key, version if route.versions[0] <= version <= route.versions[1] else _UNSUPPORTED

    def _metered_handler_of(self, route: Route) -> Callable[[RequestContext, Any, int], Any]:
        handle, errors = self._handler_of(route), self.request_metrics(route.api.key).errors

        def handle_and_count_errors(context: RequestContext, request: Any, version: int) -> Any:
            response = handle(context, request, version)
            if inspect.isawaitable(response):
                return _count_errors(response, errors)
            errors.update(error_names(response))
            return response

        return handle_and_count_errors

    # -- records -------------------------------------------------------------------------------------------------

    def topic_metrics(self, name: str) -> TopicMetrics:
        """Return the metrics of one topic."""
        metrics = self.topics.get(name)
        if metrics is None:
            if len(self.topics) > 2 * len(self._hosted_topics) + _DELETED_TOPICS_MAX:
                self.fold_deleted_topics()
            metrics = self.topics[name] = TopicMetrics()
        return metrics

    def fold_deleted_topics(self) -> None:
        """Move the metrics of topics that this broker no longer hosts into the sum `deleted_topics`."""
        for name in self.topics.keys() - set(self._hosted_topics):
            self.deleted_topics.add(self.topics.pop(name))

    def _metered_append(
        self,
        partition: Partition,
        records: memoryview,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        check: RecordsCheck | None = None,
    ) -> AppendInfo:
        metrics = self.topic_metrics(partition.topic)
        metrics.produced += 1
        try:
            info = self._append(partition, records, origin, check)
        except ApiError as error:
            metrics.failed += 1
            if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                metrics.bytes_rejected += len(records)
            raise
        if not info.is_duplicate:
            metrics.bytes_in += len(records)
            metrics.messages_in += info.last_offset - info.base_offset + 1
        return info

    def _metered_read(
        self, partition: Partition, replica: int, offset: int, max_bytes: int, *, min_one_batch: bool
    ) -> LogRead:
        metrics = self.topic_metrics(partition.topic)
        metrics.fetched += 1
        read = self._read(partition, replica, offset, max_bytes, min_one_batch=min_one_batch)
        if replica < 0:
            metrics.bytes_out += read.size_bytes
        return read

    def _count_error(self, api_key: ApiKey, code: ErrorCode, partition: Partition | None) -> None:
        self.request_metrics(api_key).errors[code.name] += 1
        if partition is not None and api_key == ApiKey.FETCH:
            self.topic_metrics(partition.topic).fetches_failed += 1


async def _count_errors(awaitable: Awaitable[Response], errors: Counter[str]) -> Response:
    response = await awaitable
    errors.update(error_names(response))
    return response


def error_names(message: Message) -> Iterator[str]:
    """Yield the name of every error code in a message and in the messages nested in it."""
    for name in _error_fields(type(message)):
        value = getattr(message, name)
        if isinstance(value, int):
            if value:
                yield ErrorCode.from_code(value).name
        else:
            for item in value if isinstance(value, list) else (value,):
                if item is not None:
                    yield from error_names(item)


@cache
def _error_fields(kind: type[Message]) -> tuple[str, ...]:
    """Return the fields of a message type that are error codes or contain error codes."""
    inner = {field.name: field.element or field for field in kind.__fields__}
    return tuple(
        name
        for name, field in inner.items()
        if name == "error_code" or (isinstance(field, StructField) and _error_fields(field.message))
    )


def api_name(api_key: int) -> str:
    """Return Kafka's name of the API, or `unknown`."""
    api = API.get(api_key)
    return api.name if api is not None else "unknown"


class _RequestTimer:
    """Measures the times of one request."""

    __slots__ = ("local_s", "metrics", "started_s")

    def __init__(self, metrics: RequestMetrics, started_s: float) -> None:
        self.metrics = metrics
        self.started_s = started_s
        self.local_s = 0.0

    def response_ready(self, now_s: float) -> None:
        """Record that the handler has responded, either immediately or after a wait in the purgatory."""
        spent_s = now_s - self.started_s
        self.metrics.remote_time.record(max(0.0, spent_s - self.local_s) if self.local_s else 0.0)

    def response_sent(self, now_s: float, sending_s: float) -> None:
        """Record that the response was written to the socket; the write took `sending_s`."""
        self.metrics.response_send_time.record(sending_s)
        self.metrics.total_time.record(now_s - self.started_s)


class _MeteredSlot(ResponseSlot):
    """A response slot with the timer of its request."""

    __slots__ = ("filled_s", "request")

    def __init__(self, connection: Connection, *, mutes_connection: bool = False, request_bytes: int = 0) -> None:
        super().__init__(connection, mutes_connection=mutes_connection, request_bytes=request_bytes)
        assert isinstance(connection, _MeteredConnection)
        self.request = connection.request
        self.filled_s = 0.0

    def fill(self, buffers: Buffers) -> None:
        if not self.filled:
            self.filled_s = perf_counter()
            self.request.response_ready(self.filled_s)
        super().fill(buffers)


class _MeteredConnection(Connection):
    """A connection that measures when its requests arrive and when their responses are sent."""

    __slots__ = ("meter", "received_s", "request")
    slot_type = _MeteredSlot
    meter: Meter
    request: _RequestTimer

    def __init__(self, router: RequestRouter, listener: str, limits: ConnectionLimits, meter: Meter) -> None:
        super().__init__(router, listener, limits)
        self.meter = meter
        self.received_s = perf_counter()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_s = perf_counter()
        super().buffer_updated(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self.meter.disconnected(self.listener)
        super().connection_lost(exc)

    def reply(self, buffers: Buffers) -> None:
        if self._queue:
            slot = _MeteredSlot(self)
            self._queue.append(slot)
            slot.fill(buffers)
            return
        request, started_s = self.request, perf_counter()
        request.response_ready(started_s)
        super().reply(buffers)
        now_s = perf_counter()
        request.metrics.response_queue_time.record(0.0)
        request.response_sent(now_s, now_s - started_s)

    def _send(self, filled: list[ResponseSlot]) -> None:
        started_s = perf_counter()
        super()._send(filled)
        now_s = perf_counter()
        for slot in filled:
            if isinstance(slot, _MeteredSlot):
                slot.request.metrics.response_queue_time.record(started_s - slot.filled_s)
                slot.request.response_sent(now_s, (now_s - started_s) / len(filled))
