"""Counts requests and records while somebody wants them counted.

A node without metrics listeners has no meter and pays nothing.  With one, the router's `handle` and the broker's
`append` are taken over, and connections are of a kind that notes when each of their answers leaves.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING

from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.log import AppendInfo
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.errors import ApiError, ProtocolError
from headrace_broker.server.connection import Buffers, Connection, ConnectionLimits, Slot
from headrace_broker.server.partitions import Partition

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.routing import RequestRouter

_HEADER_START = Struct(">hh")
_LATENCIES_MAX = 1024


class RequestCounts:
    """What is known of one API: how often, how long (of the last thousand), how often it broke the protocol."""

    __slots__ = ("answered", "by_version", "errors", "local_ms", "total_ms")

    def __init__(self) -> None:
        self.by_version: dict[int, int] = {}
        self.answered = 0
        self.errors = 0
        self.local_ms: deque[float] = deque(maxlen=_LATENCIES_MAX)
        self.total_ms: deque[float] = deque(maxlen=_LATENCIES_MAX)


class TopicCounts:
    """What came in for one topic."""

    __slots__ = ("bytes_in", "failed", "messages_in", "produced")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.produced = 0
        self.failed = 0


class Meter:
    """The counts of one node; lives on its event loop."""

    def __init__(self, router: RequestRouter) -> None:
        self.requests: dict[int, RequestCounts] = {}
        self.topics: dict[str, TopicCounts] = {}
        self.bytes_out = 0
        self.connections_made = 0
        self._router = router
        self._handle = router.handle
        router.handle = self._metered_handle  # type: ignore[method-assign]

    def watch(self, broker: Broker) -> None:
        """Count what is appended, too."""
        self._append = broker.append
        broker.append = self._metered_append  # type: ignore[method-assign]

    def connection(self, listener: str, limits: ConnectionLimits) -> Connection:
        """A connection whose answers are counted."""
        self.connections_made += 1
        return _MeteredConnection(self._router, listener, limits, self)

    def _metered_handle(self, connection: Connection, frame: memoryview) -> None:
        api_key, version = _HEADER_START.unpack_from(frame)
        counts = self.requests.get(api_key)
        if counts is None:
            counts = self.requests[api_key] = RequestCounts()
        counts.by_version[version] = counts.by_version.get(version, 0) + 1
        started_s = perf_counter()
        if isinstance(connection, _MeteredConnection):
            connection.request = (api_key, started_s)
        try:
            self._handle(connection, frame)
        except ProtocolError:
            counts.errors += 1
            raise
        finally:
            counts.local_ms.append((perf_counter() - started_s) * 1000)

    def answered(self, request: tuple[int, float], buffers: Buffers) -> None:
        """An answer is on its way."""
        api_key, started_s = request
        counts = self.requests.get(api_key)
        if counts is None:
            return
        counts.answered += 1
        counts.total_ms.append((perf_counter() - started_s) * 1000)
        if api_key == ApiKey.FETCH:
            self.bytes_out += sum(map(len, buffers))

    def _metered_append(
        self, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        counts = self.topics.get(partition.topic)
        if counts is None:
            counts = self.topics[partition.topic] = TopicCounts()
        counts.produced += 1
        try:
            info = self._append(partition, records, origin)
        except ApiError:
            counts.failed += 1
            raise
        if not info.is_duplicate:
            counts.bytes_in += len(records)
            counts.messages_in += info.last_offset - info.base_offset + 1
        return info


def api_name(api_key: int) -> str:
    """What Kafka calls the API."""
    api = API.get(api_key)
    return api.name if api is not None else str(api_key)


class _MeteredSlot(Slot):
    """A place for an answer that knows which request it is for."""

    __slots__ = ("_meter", "_request")

    def __init__(self, connection: Connection, *, holds: bool = False, request_bytes: int = 0) -> None:
        super().__init__(connection, holds=holds, request_bytes=request_bytes)
        assert isinstance(connection, _MeteredConnection)
        self._meter = connection.meter
        self._request = connection.request

    def fill(self, buffers: Buffers) -> None:
        if not self.filled:
            self._meter.answered(self._request, buffers)
        super().fill(buffers)


class _MeteredConnection(Connection):
    """A connection that notes when its answers leave."""

    __slots__ = ("meter", "request")
    slot_type = _MeteredSlot
    meter: Meter
    request: tuple[int, float]

    def __init__(self, router: RequestRouter, listener: str, limits: ConnectionLimits, meter: Meter) -> None:
        super().__init__(router, listener, limits)
        self.meter = meter
        self.request = (0, 0.0)

    def reply(self, buffers: Buffers) -> None:
        self.meter.answered(self.request, buffers)
        super().reply(buffers)
