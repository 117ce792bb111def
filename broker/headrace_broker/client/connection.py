"""One connection to one broker: pipelined requests, answers matched in order, version negotiation, time-outs.

A thin shell: it moves bytes. A small receive buffer takes size prefixes and short answers; the rest of a long one is
received straight into a frame of its own, and the records in it stay a view of that frame. A request times out when
nothing is heard for that long: an answer that arrives slowly is none that is missing. A connection that times out,
answers out of order or sends what cannot be read is closed; everything in flight then fails with a
ConnectionLostError. ApiVersions is the first request (KIP-35), in a version that old brokers may not know: they
answer in version 0 (KIP-511).
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
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
from headrace_broker.client.versions import choose_version
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decoder
from headrace_broker.protocol.errors import ErrorCode, ProtocolError
from headrace_broker.protocol.framing import encode_request, parse_response_header
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace_broker.protocol.notation import VERSION_MAX, Message, Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
OnAnswer = Callable[[Any, ClientError | None], None]
"""Called once with (response, None) or (None, error)."""

_RECEIVE_BUFFER_BYTES = 64 * 1024
_FRAME_BYTES_MAX = 256 * 1024 * 1024
_FRAME_SPARE_FACTOR = 4
_AWAITED_BYTES_MAX = 1024 * 1024
_NO_FRAME = bytearray()
_SOFTWARE_NAME = "headrace"
_INT32 = struct.Struct(">i")
_POLLRDHUP = getattr(select, "POLLRDHUP", 0)
_WAITS_FOR_OTHERS = frozenset((ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))


class _InFlight:
    """A request that waits for its answer."""

    __slots__ = ("api_key", "correlation_id", "heard", "on_answer", "response", "timer", "version")

    def __init__(
        self, correlation_id: int, api_key: int, version: int, response: type[Response], on_answer: OnAnswer
    ) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.response = response
        self.on_answer = on_answer
        self.timer: asyncio.TimerHandle | None = None
        self.heard = 0  # bytes of the answer that was arriving when the timer was due


class Connection(asyncio.BufferedProtocol):
    """A connection; make one with `open`."""

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
        self._in_flight: deque[_InFlight] = deque()
        self._error: ClientError | None = None
        self._buffer = bytearray(_RECEIVE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._reuses_frames = reuses_frames
        self._last_frame = _NO_FRAME
        self._awaited_bytes = 1

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
    ) -> Connection:
        """Connect and agree on versions. Raises ConnectionLostError, which names host and port.

        `reuses_frames`: the caller is done with the records of a long answer before the loop can receive the next.
        Such an answer costs one wake-up for each megabyte of it, and not one for each piece that the network brings.
        """
        broker = f"broker {host}:{port}" if node_id is None else f"broker {node_id} ({host}:{port})"
        loop = asyncio.get_running_loop()
        connection = cls(broker, client_id, request_timeout_ms, on_closed, reuses_frames=reuses_frames)
        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                await loop.create_connection(lambda: connection, host, port)
                connection._size_socket(send_buffer_bytes, receive_buffer_bytes)
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
        """True until the connection is lost or closed."""
        return self._error is None and self._transport is not None

    def peer_has_gone(self) -> bool:
        """Whether the broker has closed its side, which the kernel knows before the loop does."""
        wire = self._wire()
        if wire is None or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(wire.fileno(), _POLLRDHUP)  # errors and hang-ups are told in any case
        return bool(poll.poll(0))

    @property
    def requests_in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._in_flight)

    @property
    def oldest_request(self) -> tuple[int, int] | None:
        """The request whose answer is due first, and how much of a long one is there.

        None when none is due, or one that waits for a group's other members.
        """
        if not self._in_flight or self._in_flight[0].api_key in _WAITS_FOR_OTHERS:
            return None
        return self._in_flight[0].correlation_id, self._frame_filled

    def give_up(self, api_keys: Collection[int]) -> None:
        """Fail what waits of these APIs, for it to be asked elsewhere; an answer that comes then counts for nothing."""
        for waiting in self._in_flight:
            if waiting.api_key in api_keys:
                on_answer, waiting.on_answer = waiting.on_answer, _unheard
                on_answer(None, ConnectionLostError(f"{self.broker} owes an answer for long"))

    def version_for(self, message: type[Message], *, at_least: int = 0, at_most: int = VERSION_MAX) -> int:
        """Return the version to speak. Raises UnsupportedVersionError."""
        return choose_version(message, self.versions, self.broker, at_least=at_least, at_most=at_most)

    def send(
        self, message: Request[Any], version: int, on_answer: OnAnswer | None, timeout_ms: float | None = None
    ) -> None:
        """Send a request behind those already sent; `on_answer` None = the broker sends no answer (acks=0).

        Raises ConnectionLostError when the connection is closed, EncodeError when the message cannot be written.
        """
        if self._transport is None or self._error is not None:
            raise self._error or ConnectionLostError(f"{self.broker}: not connected")
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        buffers = encode_request(correlation_id, self._client_id, message, version)
        if on_answer is not None:
            key = message.__api_key__
            waiting = _InFlight(correlation_id, key, version, API[key].response, on_answer)
            timeout = self._request_timeout_ms if timeout_ms is None else timeout_ms
            waiting.timer = self._loop.call_later(timeout / 1000, self._time_out, waiting, timeout)
            self._in_flight.append(waiting)
        self._transport.writelines(buffers)

    def request(
        self, message: Request[ResponseT], *, version: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[ResponseT]:
        """Send a request and return the future of its answer, which fails with a ClientError."""
        future: asyncio.Future[ResponseT] = self._loop.create_future()

        def settle(response: ResponseT, error: ClientError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(response)

        self.send(message, self.version_for(type(message)) if version is None else version, settle, timeout_ms)
        return future

    def close(self) -> None:
        """Close at once; what is in flight fails."""
        self._fail(ConnectionLostError(f"{self.broker}: the connection was closed by this client"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        if self._transport is not None:
            await asyncio.shield(self._closed)

    # -- negotiation -------------------------------------------------------------------------------------------------

    async def _negotiate(self) -> None:
        version = min(ApiVersionsRequest.__versions__[1], 4)
        response = await self._ask_versions(version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            own = next((api for api in response.api_keys if api.api_key == ApiVersionsRequest.__api_key__), None)
            response = await self._ask_versions(0 if own is None else min(own.max_version, version - 1))
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, f"{self.broker}, ApiVersions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _ask_versions(self, version: int) -> asyncio.Future[ApiVersionsResponse]:
        from headrace_broker.client import SOFTWARE_VERSION

        return self.request(
            ApiVersionsRequest(client_software_name=_SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION),
            version=version,
        )

    # -- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def get_buffer(self, sizehint: int) -> memoryview:
        """Offer the place for the next bytes: the rest of the frame, or the receive buffer."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        if self._frame is not None:
            self._frame_filled += nbytes
            self._await_bytes(len(self._frame) - self._frame_filled)
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._receive(frame)
            return
        self._filled += nbytes
        self._split_frames()

    def eof_received(self) -> bool:
        """The broker closed its side: close ours."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is in flight."""
        self._fail(ConnectionLostError(f"{self.broker}: {exc or 'the broker closed the connection'}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The socket is slower than we are."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """The socket has caught up."""
        self.is_writable = True
        if self.on_writable is not None:
            self.on_writable()

    # -- frames ------------------------------------------------------------------------------------------------------

    def _split_frames(self) -> None:
        position, filled, view = 0, self._filled, self._view
        while filled - position >= 4 and self._error is None:
            (size,) = _INT32.unpack_from(view, position)
            if not 4 <= size <= _FRAME_BYTES_MAX:
                self._fail(ProtocolViolationError(f"{self.broker} announced an answer of {size} bytes"))
                return
            position += 4
            if filled - position < size:
                frame = self._new_frame(size)
                self._frame_filled = filled - position
                frame[: self._frame_filled] = view[position:filled]
                self._frame = frame
                self._await_bytes(size - self._frame_filled)
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
        """Memory for an answer of that size; fresh memory costs as much as receiving into it."""
        if not self._reuses_frames or size <= _RECEIVE_BUFFER_BYTES:
            return memoryview(bytearray(size))
        if not size <= len(self._last_frame) <= _FRAME_SPARE_FACTOR * size:
            self._last_frame = bytearray(size)
        return memoryview(self._last_frame)[:size]

    def _await_bytes(self, missing: int) -> None:
        """Have the kernel wake this process when so much of an answer is there, or as much as is worth it."""
        awaited = max(1, min(missing, _AWAITED_BYTES_MAX)) if self._reuses_frames else 1
        wire = self._wire() if awaited != self._awaited_bytes else None
        if wire is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)
            self._awaited_bytes = awaited

    def _wire(self) -> socket.socket | None:
        wire: socket.socket | None = None if self._transport is None else self._transport.get_extra_info("socket")
        return wire

    def _unread_bytes(self) -> int:
        """What has arrived since this process was woken last."""
        wire = self._wire() if self._awaited_bytes > 1 else None
        unread = bytearray(4)
        if wire is not None:
            fcntl.ioctl(wire.fileno(), termios.FIONREAD, unread)
        return int.from_bytes(unread, sys.byteorder)

    def _receive(self, frame: memoryview) -> None:
        if not self._in_flight:
            self._fail(ProtocolViolationError(f"{self.broker} answered although nothing was asked"))
            return
        waiting = self._in_flight.popleft()
        if waiting.timer is not None:
            waiting.timer.cancel()
        try:
            response = self._decode(frame, waiting)
        except ProtocolError as error:
            violation = ProtocolViolationError(f"{self.broker}: {error}")
            self._fail(violation)
            waiting.on_answer(None, violation)
            return
        waiting.on_answer(response, None)

    def _decode(self, frame: memoryview, waiting: _InFlight) -> Response:
        correlation_id, offset = parse_response_header(frame, waiting.api_key, waiting.version)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"answer {correlation_id} came where {waiting.correlation_id} was due")
        version = waiting.version
        if waiting.api_key == ApiVersionsRequest.__api_key__ and _is_unsupported(frame, offset):
            version = 0
        return decoder(waiting.response, version)(frame, offset)[0]

    def _time_out(self, waiting: _InFlight, timeout_ms: float) -> None:
        heard = self._frame_filled + self._unread_bytes()
        if self._frame is not None and heard != waiting.heard:
            waiting.heard = heard
            waiting.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, waiting, timeout_ms)
            return
        name = API[waiting.api_key].name
        self._fail(RequestTimeoutError(f"{self.broker} did not answer {name} within {timeout_ms:.0f} ms"))

    def _fail(self, error: ClientError) -> None:
        """Close for that reason and fail everything in flight; later failures change nothing."""
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        lost = error if isinstance(error, ConnectionLostError) else ConnectionLostError(str(error))
        for waiting in in_flight:
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.on_answer(None, lost)
        if self._on_closed is not None:
            self._on_closed()
        if self.on_writable is not None:
            self.on_writable()

    def _size_socket(self, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
        wire = self._wire()
        for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
            if wire is not None and size >= 0:
                wire.setsockopt(socket.SOL_SOCKET, option, size)


def _unheard(response: Any, error: ClientError | None) -> None:
    """For an answer that nobody waits for any more."""


def _is_unsupported(frame: memoryview, offset: int) -> bool:
    code = int.from_bytes(frame[offset : offset + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION
