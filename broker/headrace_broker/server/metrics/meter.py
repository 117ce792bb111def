"""Counts requests and records while somebody wants them counted.

A node without metrics listeners has no meter and pays nothing.  With one, the router's `handle` and `handler_of` and
the broker's `append`, `read` and `refused` are taken over, and connections are of a kind that notes when each of their
answers leaves.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import cache
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.log import AppendInfo, LogRead
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.notation import Message, Response, StructField
from headrace_broker.server.metrics.windows import Rate
from headrace_broker.server.network.connection import Buffers, Connection, ConnectionLimits, Slot
from headrace_broker.server.replicas.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.network.routing import RequestRouter, Route

_HEADER_START = Struct(">hh")
_LATENCIES_MAX = 1024
_GONE_TOPICS_MAX = 100
_NOT_SERVED = -1


class Latencies:
    """How long something took: how often, and the last thousand times in ms."""

    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms: deque[float] = deque(maxlen=_LATENCIES_MAX)

    def note(self, seconds: float) -> None:
        self.count += 1
        self.last_ms.append(seconds * 1000)


class RequestCounts:
    """What is known of one API: how often in which version, what its answers said, and where its time went."""

    __slots__ = ("by_version", "errors", "local", "queued", "remote", "sending", "total", "unsent")

    def __init__(self) -> None:
        self.by_version: dict[int, int] = {}
        self.errors: Counter[str] = Counter()
        self.queued = Latencies()  # from its last byte to its turn
        self.local = Latencies()  # at work at first
        self.remote = Latencies()  # parked, or waiting for others
        self.unsent = Latencies()  # answered, behind earlier requests
        self.sending = Latencies()  # handing the answer to the socket
        self.total = Latencies()


class TopicCounts:
    """What came in for one topic, and what went out."""

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

    def add(self, other: TopicCounts) -> None:
        """Count what another topic counted, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Meter:
    """The counts of one node; lives on its event loop."""

    def __init__(self, router: RequestRouter) -> None:
        self.requests: dict[int, RequestCounts] = {}
        self.topics: dict[str, TopicCounts] = {}
        self.gone_topics = TopicCounts()
        self._held_topics: Collection[str] = ()
        self.connections_made: dict[str, Rate] = {}
        self.connections_lost: dict[str, Rate] = {}
        self._router = router
        self._handle, self._handler_of = router.handle, router.handler_of
        router.handle = self._metered_handle  # type: ignore[method-assign]
        router.handler_of = self._metered_handler_of  # type: ignore[method-assign]

    def watch(self, broker: Broker) -> None:
        """Count what is appended and read, too."""
        self._held_topics = broker.partitions.by_name
        self._append, self._read = broker.append, broker.read
        broker.append = self._metered_append  # type: ignore[method-assign]
        broker.read = self._metered_read  # type: ignore[method-assign]
        broker.refused = self._refused  # type: ignore[method-assign]

    # -- connections and requests --------------------------------------------------------------------------------

    def connection(self, listener: str, limits: ConnectionLimits) -> Connection:
        """A connection whose answers are counted."""
        now_s = perf_counter()
        self.connections_made.setdefault(listener, Rate(now_s)).add(1, now_s)
        return _MeteredConnection(self._router, listener, limits, self)

    def disconnected(self, listener: str) -> None:
        """A connection has ended."""
        now_s = perf_counter()
        self.connections_lost.setdefault(listener, Rate(now_s)).add(1, now_s)

    def counts(self, api_key: int) -> RequestCounts:
        """What is known of an API."""
        counts = self.requests.get(api_key)
        if counts is None:
            counts = self.requests[api_key] = RequestCounts()
        return counts

    def _metered_handle(self, connection: Connection, frame: memoryview) -> None:
        api_key, version = self._served(connection.listener, *_HEADER_START.unpack_from(frame))
        counts = self.counts(api_key)
        counts.by_version[version] = counts.by_version.get(version, 0) + 1
        started_s = perf_counter()
        request = _Request(counts, started_s)
        if isinstance(connection, _MeteredConnection):
            connection.request = request
            counts.queued.note(started_s - connection.received_s)
        try:
            self._handle(connection, frame)
        except ProtocolError:
            counts.errors[ErrorCode.INVALID_REQUEST.name] += 1
            raise
        finally:
            request.local_s = perf_counter() - started_s
            counts.local.note(request.local_s)

    def _served(self, listener: str, api_key: int, version: int) -> tuple[int, int]:
        """The API and its version, or what stands for all that are not served: clients may name any number."""
        route = self._router.routes_of(listener).get(api_key)
        if route is None:
            return _NOT_SERVED, _NOT_SERVED
        return api_key, version if route.versions[0] <= version <= route.versions[1] else _NOT_SERVED

    def _metered_handler_of(self, route: Route) -> Callable[[RequestContext, Any, int], Any]:
        handle, errors = self._handler_of(route), self.counts(route.api.key).errors

        def handle_and_note(context: RequestContext, request: Any, version: int) -> Any:
            answer = handle(context, request, version)
            if inspect.isawaitable(answer):
                return _noted(answer, errors)
            errors.update(error_names(answer))
            return answer

        return handle_and_note

    # -- records -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicCounts:
        """What is known of a topic."""
        counts = self.topics.get(name)
        if counts is None:
            if len(self.topics) > 2 * len(self._held_topics) + _GONE_TOPICS_MAX:
                self.forget_topics()
            counts = self.topics[name] = TopicCounts()
        return counts

    def forget_topics(self) -> None:
        """Of topics that are not here any more keep the sum only, as Kafka does."""
        for name in self.topics.keys() - set(self._held_topics):
            self.gone_topics.add(self.topics.pop(name))

    def _metered_append(
        self, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        counts = self.topic(partition.topic)
        counts.produced += 1
        try:
            info = self._append(partition, records, origin)
        except ApiError as error:
            counts.failed += 1
            if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                counts.bytes_rejected += len(records)
            raise
        if not info.is_duplicate:
            counts.bytes_in += len(records)
            counts.messages_in += info.last_offset - info.base_offset + 1
        return info

    def _metered_read(
        self, partition: Partition, replica: int, offset: int, max_bytes: int, *, min_one_batch: bool
    ) -> LogRead:
        counts = self.topic(partition.topic)
        counts.fetched += 1
        found = self._read(partition, replica, offset, max_bytes, min_one_batch=min_one_batch)
        if replica < 0:
            counts.bytes_out += found.size_bytes
        return found

    def _refused(self, api_key: ApiKey, code: ErrorCode, partition: Partition | None) -> None:
        self.counts(api_key).errors[code.name] += 1
        if partition is not None and api_key == ApiKey.FETCH:
            self.topic(partition.topic).fetches_failed += 1


async def _noted(answer: Awaitable[Response], errors: Counter[str]) -> Response:
    response = await answer
    errors.update(error_names(response))
    return response


def error_names(message: Message) -> Iterator[str]:
    """The name of every error code in a message and what it holds."""
    for name in _where_errors_are(type(message)):
        value = getattr(message, name)
        if isinstance(value, int):
            if value:
                yield ErrorCode.of(value).name
        else:
            for item in value if isinstance(value, list) else (value,):
                if item is not None:
                    yield from error_names(item)


@cache
def _where_errors_are(kind: type[Message]) -> tuple[str, ...]:
    """The fields of a message that are error codes, or messages that have such fields."""
    inner = {field.name: field.element or field for field in kind.__fields__}
    return tuple(
        name
        for name, field in inner.items()
        if name == "error_code" or (isinstance(field, StructField) and _where_errors_are(field.message))
    )


def api_name(api_key: int) -> str:
    """What Kafka calls the API."""
    api = API.get(api_key)
    return api.name if api is not None else "unknown"


class _Request:
    """One request on its way."""

    __slots__ = ("counts", "local_s", "started_s")

    def __init__(self, counts: RequestCounts, started_s: float) -> None:
        self.counts = counts
        self.started_s = started_s
        self.local_s = 0.0

    def answered(self, now_s: float) -> None:
        """Its answer is there, at once or after it was parked."""
        spent_s = now_s - self.started_s
        self.counts.remote.note(max(0.0, spent_s - self.local_s) if self.local_s else 0.0)

    def sent(self, now_s: float, sending_s: float) -> None:
        """Its answer was handed to the socket."""
        self.counts.sending.note(sending_s)
        self.counts.total.note(now_s - self.started_s)


class _MeteredSlot(Slot):
    """A place for an answer that knows which request it is for."""

    __slots__ = ("filled_s", "request")

    def __init__(self, connection: Connection, *, holds: bool = False, request_bytes: int = 0) -> None:
        super().__init__(connection, holds=holds, request_bytes=request_bytes)
        assert isinstance(connection, _MeteredConnection)
        self.request = connection.request
        self.filled_s = 0.0

    def fill(self, buffers: Buffers) -> None:
        if not self.filled:
            self.filled_s = perf_counter()
            self.request.answered(self.filled_s)
        super().fill(buffers)


class _MeteredConnection(Connection):
    """A connection that notes when requests come and when their answers leave."""

    __slots__ = ("meter", "received_s", "request")
    slot_type = _MeteredSlot
    meter: Meter
    request: _Request

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
        request.answered(started_s)
        super().reply(buffers)
        now_s = perf_counter()
        request.counts.unsent.note(0.0)
        request.sent(now_s, now_s - started_s)

    def _send(self, answered: list[Slot]) -> None:
        started_s = perf_counter()
        super()._send(answered)
        now_s = perf_counter()
        for slot in answered:
            if isinstance(slot, _MeteredSlot):
                slot.request.counts.unsent.note(started_s - slot.filled_s)
                slot.request.sent(now_s, (now_s - started_s) / len(answered))
