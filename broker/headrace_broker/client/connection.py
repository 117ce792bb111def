"""A connection to one broker. It pipelines requests, matches responses to requests, and negotiates API versions.

Size prefixes and short responses are received into a small buffer. The remaining bytes of a long response are received
directly into a separate buffer (the frame). The records of the response are memory views of this buffer. A request
times out when no byte of its response arrives within the timeout. If bytes of a long response have arrived when the
timeout expires, the timeout starts again. The connection is closed when a request times out, a response is out of order
or a response cannot be decoded. All requests in flight then fail with ConnectionLostError. The first request is
ApiVersions (KIP-35), in a version that old brokers may not support. Such brokers respond in version 0 (KIP-511).
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import mmap
import select
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

from headrace_broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    ProtocolViolationError,
    RequestTimeoutError,
)
from headrace_broker.client.lazy_timer import LazyTimer
from headrace_broker.client.versions import choose_version
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ErrorCode, ProtocolError
from headrace_broker.protocol.framing import encode_request, parse_response_header
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace_broker.protocol.notation import VERSION_MAX, Message, Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
OnResponse = Callable[[Any, ClientError | None], None]
"""A callback that the connection calls once, with (response, None) or (None, error)."""

_RECEIVE_BUFFER_BYTES = 64 * 1024
_RESPONSE_BYTES_MAX = 256 * 1024 * 1024
_FRAME_SPARE_FACTOR = 4
_RECEIVE_LOW_WATER_MAX = 1024 * 1024
_NO_FRAME = bytearray()
_SOFTWARE_NAME = "headrace"
_INT32 = struct.Struct(">i")
_POLLRDHUP = getattr(select, "POLLRDHUP", 0)
_WAITING_FOR_GROUP_MEMBERS = frozenset((ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))


class _InFlightRequest:
    """A request that waits for its response."""

    __slots__ = (
        "api_key", "correlation_id", "deadline_s", "on_response", "received_bytes", "response", "timeout_ms", "version"
    )  # fmt: skip

    def __init__(
        self,
        correlation_id: int,
        api_key: int,
        version: int,
        response: type[Response],
        on_response: OnResponse,
        timeout_ms: float,
    ) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.response = response
        self.on_response = on_response
        self.timeout_ms = timeout_ms
        self.deadline_s = 0.0
        self.received_bytes = 0  # bytes of this response received when its timeout last expired


class BrokerConnection(asyncio.BufferedProtocol):
    """A connection to a broker; create it with `open`."""

    def __init__(
        self,
        broker: str,
        client_id: str,
        request_timeout_ms: float,
        on_closed: Callable[[], None] | None = None,
        *,
        reuses_frames: bool = False,
    ) -> None:
        self.broker = broker
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_writable = True
        self.on_writable: Callable[[], None] | None = None
        self._on_closed = on_closed
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._correlation_ids = itertools.count(1)
        self._in_flight: deque[_InFlightRequest] = deque()
        self._timer = LazyTimer(self._loop, self._check_timeouts)
        self._error: ClientError | None = None
        # the operating system allocates only the pages that responses reach
        self._view = memoryview(mmap.mmap(-1, _RECEIVE_BUFFER_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._reuses_frames = reuses_frames
        self._last_frame = _NO_FRAME
        self._receive_low_water = 1

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "headrace",
        node_id: int | None = None,
        request_timeout_ms: float = 30_000,
        setup_timeout_ms: float = 10_000,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        on_closed: Callable[[], None] | None = None,
        reuses_frames: bool = False,
    ) -> BrokerConnection:
        """Connect and negotiate the API versions. Raises ConnectionLostError with host and port.

        Set `reuses_frames` if the caller stops using the records of a long response before the next long response is
        received. All long responses then share one buffer. The event loop then wakes up once per megabyte of a long
        response, not once per network packet.
        """
        broker = f"broker {host}:{port}" if node_id is None else f"broker {node_id} ({host}:{port})"
        loop = asyncio.get_running_loop()
        connection = cls(broker, client_id, request_timeout_ms, on_closed, reuses_frames=reuses_frames)
        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                await loop.create_connection(lambda: connection, host, port)
                connection._set_socket_buffers(send_buffer_bytes, receive_buffer_bytes)
                await connection._negotiate()
        except (OSError, TimeoutError) as error:
            connection.close()
            reason = str(error) or f"no connection within {setup_timeout_ms:.0f} ms"
            raise ConnectionLostError(f"{broker}: {reason}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while the connection is established."""
        return self._error is None and self._transport is not None

    def is_closed_by_peer(self) -> bool:
        """Return whether the broker has closed its side of the connection.

        This method detects the close even if the event loop has not read the end of the stream yet.
        """
        raw_socket = self._socket()
        if raw_socket is None or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(raw_socket.fileno(), _POLLRDHUP)  # poll reports errors and closed connections in any case
        return bool(poll.poll(0))

    @property
    def requests_in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._in_flight)

    @property
    def oldest_request(self) -> tuple[int, int] | None:
        """The oldest request in flight, as (correlation id, a number that shows the progress of its response).

        The number changes whenever the next bytes of a long response arrive. The result is None if no request is in
        flight. It is also None if the oldest request is a JoinGroup or SyncGroup request, because the response to such
        a request waits for other members.
        """
        if not self._in_flight or self._in_flight[0].api_key in _WAITING_FOR_GROUP_MEMBERS:
            return None
        return self._in_flight[0].correlation_id, self._frame_filled

    def fail_requests(self, api_keys: Collection[int]) -> None:
        """Fail the in-flight requests of these APIs, so that callers retry on another broker.

        The responses to the failed requests are ignored when they arrive.
        """
        for request in self._in_flight:
            if request.api_key in api_keys:
                on_response, request.on_response = request.on_response, _ignore_response
                on_response(None, ConnectionLostError(f"{self.broker} has not responded for a long time"))

    def version_for(self, message: type[Message], *, at_least: int = 0, at_most: int = VERSION_MAX) -> int:
        """Return the version, from `at_least` to `at_most`, to use for this request class.

        Raises UnsupportedVersionError.
        """
        return choose_version(message, self.versions, self.broker, at_least=at_least, at_most=at_most)

    def send(
        self, message: Request[Any], version: int, on_response: OnResponse | None, timeout_ms: float | None = None
    ) -> None:
        """Send a request after all earlier requests. `on_response` is None for a produce request with acks=0.

        Raises ConnectionLostError if the connection is closed, and EncodeError if the message cannot be encoded.
        """
        if self._transport is None or self._error is not None:
            raise self._error or ConnectionLostError(f"{self.broker}: not connected")
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        buffers = encode_request(correlation_id, self._client_id, message, version)
        if on_response is not None:
            key = message.__api_key__
            timeout = self._request_timeout_ms if timeout_ms is None else timeout_ms
            request = _InFlightRequest(correlation_id, key, version, API[key].response, on_response, timeout)
            self._in_flight.append(request)
            self._start_timeout(request)
        self._transport.writelines(buffers)

    def request(
        self, message: Request[ResponseT], *, version: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[ResponseT]:
        """Send a request and return a future for its response. The future raises ClientError if the request fails."""
        future: asyncio.Future[ResponseT] = self._loop.create_future()

        def complete(response: ResponseT, error: ClientError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(response)

        self.send(message, self.version_for(type(message)) if version is None else version, complete, timeout_ms)
        return future

    def close(self) -> None:
        """Close the connection immediately. The requests in flight fail."""
        self._fail(ConnectionLostError(f"{self.broker}: the connection was closed by this client"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        if self._transport is not None:
            await asyncio.shield(self._closed)

    # -- negotiation -------------------------------------------------------------------------------------------------

    async def _negotiate(self) -> None:
        version = min(ApiVersionsRequest.__versions__[1], 4)
        response = await self._request_api_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            own = next((api for api in response.api_keys if api.api_key == ApiVersionsRequest.__api_key__), None)
            response = await self._request_api_versions(0 if own is None else min(own.max_version, version - 1))
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, f"{self.broker}: cannot negotiate API versions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _request_api_versions(self, version: int) -> asyncio.Future[ApiVersionsResponse]:
        from headrace_broker.client import SOFTWARE_VERSION

        return self.request(
            ApiVersionsRequest(client_software_name=_SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION),
            version=version,
        )

    # -- asyncio callbacks -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass of asyncio.Transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for the next received bytes: the free part of the frame or of the receive buffer."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Split `nbytes` received bytes into responses, and handle the complete responses."""
        if self._frame is not None:
            self._frame_filled += nbytes
            self._set_receive_low_water(len(self._frame) - self._frame_filled)
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._receive(frame)
            return
        self._filled += nbytes
        self._split_frames()

    def eof_received(self) -> bool:
        """Close the transport, because the broker closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests in flight."""
        self._fail(ConnectionLostError(f"{self.broker}: {exc or 'the broker closed the connection'}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Mark the connection as not writable: its send buffer is full."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Mark the connection as writable again and call `on_writable`."""
        self.is_writable = True
        if self.on_writable is not None:
            self.on_writable()

    # -- frames ------------------------------------------------------------------------------------------------------

    def _split_frames(self) -> None:
        position, filled, view = 0, self._filled, self._view
        while filled - position >= 4 and self._error is None:
            (size,) = _INT32.unpack_from(view, position)
            if not 4 <= size <= _RESPONSE_BYTES_MAX:
                self._fail(
                    ProtocolViolationError(
                        f"{self.broker}: response size {size} is invalid, must be between 4 and {_RESPONSE_BYTES_MAX}"
                    )
                )
                return
            position += 4
            if filled - position < size:
                frame = self._new_frame(size)
                self._frame_filled = filled - position
                frame[: self._frame_filled] = view[position:filled]
                self._frame = frame
                self._set_receive_low_water(size - self._frame_filled)
                position = filled
                break
            frame = memoryview(bytes(view[position : position + size]))
            self._last_frame = _NO_FRAME
            position += size
            self._receive(frame)
        left = filled - position
        if left and position:
            view[:left] = bytes(view[position:filled])
        self._filled = left

    def _new_frame(self, size: int) -> memoryview:
        """Return memory for a response of this size; reuse the last frame if possible, because allocation is slow."""
        if not self._reuses_frames or size <= _RECEIVE_BUFFER_BYTES:
            return memoryview(bytearray(size))
        if not size <= len(self._last_frame) <= _FRAME_SPARE_FACTOR * size:
            self._last_frame = bytearray(size)
        return memoryview(self._last_frame)[:size]

    def _set_receive_low_water(self, missing: int) -> None:
        """Set SO_RCVLOWAT, so that the kernel wakes this process when `missing` bytes (at most 1 MiB) have arrived."""
        low_water = max(1, min(missing, _RECEIVE_LOW_WATER_MAX)) if self._reuses_frames else 1
        raw_socket = self._socket() if low_water != self._receive_low_water else None
        if raw_socket is not None:
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._receive_low_water = low_water

    def _socket(self) -> socket.socket | None:
        raw_socket: socket.socket | None = None if self._transport is None else self._transport.get_extra_info("socket")
        return raw_socket

    def _unread_bytes(self) -> int:
        """Return how many bytes wait in the kernel's receive buffer."""
        raw_socket = self._socket() if self._receive_low_water > 1 else None
        unread = bytearray(4)
        if raw_socket is not None:
            fcntl.ioctl(raw_socket.fileno(), termios.FIONREAD, unread)
        return int.from_bytes(unread, sys.byteorder)

    def _receive(self, frame: memoryview) -> None:
        if not self._in_flight:
            self._fail(ProtocolViolationError(f"{self.broker} sent a response, but no request is in flight"))
            return
        request = self._in_flight.popleft()
        try:
            response = self._decode(frame, request)
        except ProtocolError as error:
            violation = ProtocolViolationError(f"{self.broker}: {error}")
            self._fail(violation)
            request.on_response(None, violation)
            return
        request.on_response(response, None)

    def _decode(self, frame: memoryview, request: _InFlightRequest) -> Response:
        correlation_id, offset = parse_response_header(frame, request.api_key, request.version)
        if correlation_id != request.correlation_id:
            raise ProtocolError(
                f"the response has correlation id {correlation_id}, but the request has {request.correlation_id}"
            )
        version = request.version
        if request.api_key == ApiVersionsRequest.__api_key__ and _is_unsupported(frame, offset):
            version = 0
        return decoder(request.response, version)(frame, offset)[0]

    def _start_timeout(self, request: _InFlightRequest) -> None:
        request.deadline_s = self._loop.time() + request.timeout_ms / 1000
        self._timer.set(request.deadline_s)

    def _check_timeouts(self) -> None:
        """Close the connection if a request in flight has timed out, otherwise set the timer for the next timeout."""
        now_s = self._loop.time()
        for request in list(self._in_flight):
            if self._error is None and request.deadline_s <= now_s:
                self._time_out(request)
        if self._in_flight:
            self._timer.set(min(request.deadline_s for request in self._in_flight))

    def _time_out(self, request: _InFlightRequest) -> None:
        received = self._frame_filled + self._unread_bytes()
        if self._frame is not None and received != request.received_bytes:
            request.received_bytes = received
            self._start_timeout(request)
            return
        name = API[request.api_key].name
        self._fail(RequestTimeoutError(f"{self.broker} did not respond to {name} within {request.timeout_ms:.0f} ms"))

    def _fail(self, error: ClientError) -> None:
        """Close the connection and fail all requests in flight. Later errors are ignored."""
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._timer.cancel()
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        connection_lost = error if isinstance(error, ConnectionLostError) else ConnectionLostError(str(error))
        for request in in_flight:
            request.on_response(None, connection_lost)
        if self._on_closed is not None:
            self._on_closed()
        if self.on_writable is not None:
            self.on_writable()

    def _set_socket_buffers(self, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
        raw_socket = self._socket()
        for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
            if raw_socket is not None and size >= 0:
                raw_socket.setsockopt(socket.SOL_SOCKET, option, size)


def _ignore_response(response: Any, error: ClientError | None) -> None:
    """Ignore a response whose request has already failed."""


def _is_unsupported(frame: memoryview, offset: int) -> bool:
    code = int.from_bytes(frame[offset : offset + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION
