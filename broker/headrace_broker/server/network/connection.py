"""One client connection: receives request frames and sends responses in request order, with bounded memory.

The transport writes directly into one receive buffer per connection. The buffer starts small and grows to the size of
the frame that is being received. It also grows when a read fills it, so that a busy client needs fewer reads, and it
shrinks when the connection is idle. The router receives each frame as a memoryview of the buffer. The router must not
keep the memoryview after `handle` returns, because the connection reuses the buffer immediately.

Order: responses are sent in the order of their requests. Kafka processes the requests of a connection one at a time.
This broker makes an exception for a Produce or Fetch request whose response is delayed: the request reserves a
`ResponseSlot`, and the connection processes the next requests. Any other request that has to wait mutes the connection,
as in Kafka. A *muted* connection processes no further requests. A connection is muted while such a request runs, while
a thread checks the records of a Produce request, while the client does not read its responses, and while too many
responses are queued after a delayed response. While it is muted, the receive buffer fills, reading stops, and TCP
applies backpressure to the client. The memory of a connection is limited to `ConnectionLimits` plus one response;
`RequestMemoryPool` limits the memory of large requests.

Fairness: a client that pipelines many requests is served in time slices; other connections run between two slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from time import monotonic
from typing import Protocol, cast

from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.server.network.busy_poll import BusyPoll
from headrace_broker.server.network.foreign_protocols import ForeignProtocols
from headrace_broker.server.network.request_memory import UNCOUNTED_BYTES, RequestMemoryPool
from headrace_broker.server.network.retriable_batch_errors import RetriableBatchErrors

logger = logging.getLogger(__name__)

Buffers = Sequence[bytes | bytearray | memoryview]

_SIZE = Struct(">i")
_BUFFER_BYTES_IDLE = 16 * 1024
_BUFFER_BYTES_BUSY = UNCOUNTED_BYTES
_BUFFER_GROWTH = 4
_PROGRESS_BYTES_MIN = 16 * 1024
_FRAME_BYTES_MIN = 8
_DECODED_BYTES_PER_FRAME_BYTE = 8
"""Memory of a decoded request per byte of its frame, measured with fetches of many partitions."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection."""

    request_bytes_max: int = 104_857_600
    queued_responses_max: int = 1000
    queued_bytes_max: int = 4 * 1024 * 1024
    time_slice_s: float = 0.005


class Router(Protocol):
    """Handles the requests of connections.

    `handle` may call the connection's `reply`, `reserve_response`, `reserve_response_and_mute` or `close`.
    `unsent_bytes` is the total size of all connections' responses that are queued or not yet read by clients.
    """

    unsent_bytes: int
    busy_poll: BusyPoll
    request_memory: RequestMemoryPool
    foreign_protocols: ForeignProtocols

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Handle one request. Raises ProtocolError if the frame violates the protocol."""

    def connected(self, connection: Connection) -> bool:
        """Accept a new connection. Returns False to reject it."""

    def disconnected(self, connection: Connection) -> None:
        """Remove a closed connection, and cancel its delayed operations."""


class ResponseSlot:
    """The position of one response in the connection's queue.

    The slot is filled when the delayed request completes.
    """

    __slots__ = ("_connection", "buffers", "filled", "mutes_connection", "request_bytes")

    def __init__(self, connection: Connection, *, mutes_connection: bool = False, request_bytes: int = 0) -> None:
        self._connection: Connection | None = connection
        self.request_bytes = request_bytes
        self.buffers: Buffers | None = None
        self.filled = False
        self.mutes_connection = mutes_connection

    def fill(self, buffers: Buffers) -> None:
        """Set the response, or do nothing if the connection is closed."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.filled:
            self.buffers = buffers
            self.filled = True
            connection.slot_filled(self)


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection.

    The module docstring describes the order of the responses and the limits of the connection's memory.
    """

    __slots__ = (
        "_buffer",
        "_closing",
        "_end",
        "_eof_received",
        "_limits",
        "_muted_by_request",
        "_pending_bytes_at_check",
        "_queue",
        "_queued_bytes",
        "_reading",
        "_requests_paused",
        "_router",
        "_start",
        "_time_slice_is_over",
        "_transport",
        "_unsent_bytes",
        "_unwritten_bytes",
        "_unwritten_bytes_at_sweep",
        "_view",
        "_write_paused",
        "active",
        "client_host",
        "client_software_name",
        "delayed_operations",
        "listener",
        "on_disconnect",
        "peer",
        "retriable_batch_errors",
    )

    slot_type: type[ResponseSlot] = ResponseSlot

    def __init__(self, router: Router, listener: str, limits: ConnectionLimits) -> None:
        self._router = router
        self._limits = limits
        self.listener = listener
        self._buffer = bytearray(_BUFFER_BYTES_IDLE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._queue: deque[ResponseSlot] = deque()
        self._queued_bytes = 0
        self._unsent_bytes = 0
        self._unwritten_bytes = 0
        self._unwritten_bytes_at_sweep = -1
        self._pending_bytes_at_check = 0
        self._muted_by_request = False
        self._requests_paused = False
        self._write_paused = False
        self._time_slice_is_over = False
        self._reading = True
        self._eof_received = False
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self.active = True
        self.peer = "?"
        self.client_host = ""
        self.client_software_name = ""
        self.delayed_operations: dict[object, None] = {}
        self.retriable_batch_errors = RetriableBatchErrors()
        self.on_disconnect: Callable[[], None] | None = None

    # -- called by the transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        if address:
            self.client_host = str(address[0])
            self.peer = f"{address[0]}:{address[1]}"
        if not self._router.connected(self):
            self._closing = True
            transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.active = True
        self._process_requests()
        if not self._end:
            self._router.busy_poll.record_read(nbytes)

    def eof_received(self) -> bool:
        """Keep the connection open until its complete requests are processed, as Kafka does.

        A producer with acks=0 may disconnect immediately after it has sent its last request.
        """
        self._eof_received = True
        return self._has_unfinished_requests()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._queue.clear()
        self._queued_bytes = 0
        self._count_unsent(-self._unsent_bytes)
        self._router.disconnected(self)
        if self.on_disconnect is not None:
            self.on_disconnect()
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._router.request_memory.release(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport is not None:
            self._unwritten_bytes = self._transport.get_write_buffer_size()
            self._count_unsent(self._unwritten_bytes)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._count_unsent(-self._unwritten_bytes)
        self._unwritten_bytes = 0
        self._resume()

    # -- called by the router while it handles a request -------------------------------------------------------

    def reply(self, buffers: Buffers) -> None:
        """Respond to the request that is being handled."""
        if self._queue:
            slot = ResponseSlot(self)
            self._queue.append(slot)
            slot.fill(buffers)
        elif self._transport is not None:
            self._transport.writelines(buffers)

    def reserve_response(self, frame_bytes: int = 0) -> ResponseSlot:
        """Reserve the position of a response that is sent later.

        The connection still processes its next requests, up to the limits. `frame_bytes` is the approximate size of
        the delayed request's frame. A multiple of this size counts as queued bytes until the response is set.
        """
        slot = self.slot_type(self, request_bytes=_DECODED_BYTES_PER_FRAME_BYTE * frame_bytes)
        self._queued_bytes += slot.request_bytes
        self._queue.append(slot)
        return slot

    def reserve_response_and_mute(self) -> ResponseSlot:
        """Reserve the position of a response that is sent later, and mute the connection until then."""
        self._muted_by_request = True
        slot = self.slot_type(self, mutes_connection=True)
        self._queue.append(slot)
        return slot

    def pause_requests(self) -> None:
        """Process no further requests until `resume_requests`: the handler of the current request will respond later.

        Unlike `reserve_response_and_mute`, this method reserves no response. After the pause, the handler calls `reply`
        or `reserve_response`, as if the request had just arrived. The request may also have no response.
        """
        self._requests_paused = True

    def resume_requests(self) -> None:
        """Process the next requests after `pause_requests`."""
        self._requests_paused = False
        if self._eof_received and not self._closing:
            asyncio.get_running_loop().call_soon(self._resume_processing)
        else:
            self._resume()

    def close(self, reason: str = "") -> None:
        """Close the connection after the transport has sent the responses in its buffer. If `reason` is set, log it."""
        if self._closing:
            return
        self._closing = True
        if reason:
            logger.warning("Connection from %s: closing the connection: %s", self.peer, reason)
        if self._transport is not None:
            self._transport.close()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be closed after it has sent the responses in its buffer."""
        return self._closing

    # -- slots -------------------------------------------------------------------------------------------------

    def slot_filled(self, slot: ResponseSlot) -> None:
        """Handle a filled slot: send all responses up to the first one that is still pending."""
        queue = self._queue
        if not queue:
            return
        if slot.mutes_connection:
            self._muted_by_request = False
        response_bytes = _length(slot.buffers)
        self._queued_bytes += response_bytes - slot.request_bytes
        self._count_unsent(response_bytes)
        if queue[0].filled:
            filled = []
            while queue and queue[0].filled:
                filled.append(queue.popleft())
            self._send(filled)
        self._resume()

    def _send(self, filled: list[ResponseSlot]) -> None:
        """Write the responses of these slots with one call."""
        buffers = [buffer for slot in filled for buffer in slot.buffers or ()]
        sent_bytes = _length(buffers)
        self._queued_bytes -= sent_bytes
        self._count_unsent(-sent_bytes)
        if self._transport is not None and buffers:
            self._transport.writelines(buffers)

    def _count_unsent(self, change_bytes: int) -> None:
        self._unsent_bytes += change_bytes
        self._router.unsent_bytes += change_bytes

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def is_muted(self) -> bool:
        """Whether the connection processes no further requests for now."""
        return (
            self._muted_by_request
            or self._requests_paused
            or self._write_paused
            or self._time_slice_is_over
            or self._closing
            or self._queued_bytes > self._limits.queued_bytes_max
            or len(self._queue) >= self._limits.queued_responses_max
        )

    def _process_requests(self) -> None:
        start, end, view = self._start, self._end, self._view
        slice_ends_s = monotonic() + self._limits.time_slice_s
        try:
            while end - start >= 4 and not (
                self._write_paused
                or self._time_slice_is_over
                or self._closing
                or self._requests_paused
                or (self._queue and self.is_muted)
            ):
                (size,) = _SIZE.unpack_from(view, start)
                if not _FRAME_BYTES_MIN <= size <= self._limits.request_bytes_max:
                    self._close_after_invalid_size(size)
                    return
                stop = start + 4 + size
                if stop > end:
                    break
                self._start = stop
                self._router.handle(self, view[start + 4 : stop])
                start = stop
                if end - start >= 4 and monotonic() >= slice_ends_s:
                    self._yield_to_other_connections()
        except ProtocolError as error:
            self.close(str(error))
            return
        self._start = start
        self._adjust_buffer(start, end)
        if self._eof_received and not self._has_unfinished_requests():
            self.close()

    def _close_after_invalid_size(self, size: int) -> None:
        reason = self._router.foreign_protocols.explain_invalid_size(_SIZE.pack(size), self.listener)
        if reason is None:
            limits = f"{_FRAME_BYTES_MIN}..{self._limits.request_bytes_max}"
            reason = f"request size {size} is not within {limits} bytes"
        self.close(reason)

    def _has_unfinished_requests(self) -> bool:
        """Return whether requests are paused, or a complete request waits for the next time slice.

        Called after the client has disconnected. A request that waits for the responses to earlier requests does not
        count, because the client is disconnected and does not read these responses.
        """
        if self._requests_paused:
            return True
        pending = self._end - self._start
        return (
            self._time_slice_is_over and pending >= 4 and pending - 4 >= _SIZE.unpack_from(self._view, self._start)[0]
        )

    def _yield_to_other_connections(self) -> None:
        self._time_slice_is_over = True
        asyncio.get_running_loop().call_soon(self._start_time_slice)

    def _start_time_slice(self) -> None:
        self._time_slice_is_over = False
        self._resume_processing()

    def _adjust_buffer(self, start: int, end: int) -> None:
        if end == len(self._buffer) < _BUFFER_BYTES_BUSY and not self.is_muted:
            # the read filled the buffer, so the socket probably has more data
            self._replace_buffer(start, end, 2 * end)
            start, end = 0, self._end
        if start == end:
            self._start = self._end = 0
            if len(self._buffer) > UNCOUNTED_BYTES and self._router.request_memory.is_under_pressure:
                self.release_idle_buffer()
            return
        pending = end - start
        if start and pending <= UNCOUNTED_BYTES < len(self._buffer) and self._router.request_memory.is_under_pressure:
            self._replace_buffer(start, end, UNCOUNTED_BYTES)
            self._router.request_memory.release(self)
            start, end = 0, self._end
        needed = 4 + _SIZE.unpack_from(self._view, start)[0] if pending >= 4 else _BUFFER_BYTES_IDLE
        capacity = len(self._buffer)
        if pending >= needed or self._closing:
            if end == capacity:
                self._stop_reading_when_full(start, pending)
            return
        if start + needed <= capacity:
            return
        if needed > capacity:
            self._grow(start, end, needed)
        else:
            self._view[:pending] = self._view[start:end]
            self._start, self._end = 0, pending

    def _grow(self, start: int, end: int, needed: int) -> None:
        """Grow the buffer for a frame of `needed` bytes, and keep the unprocessed data from `start` to `end`.

        For a large frame, the buffer grows only as fast as the bytes of the frame arrive.
        """
        pending = end - start
        if pending == len(self._buffer) or needed <= _BUFFER_BYTES_BUSY:
            capacity = min(_round_up(needed), max(_BUFFER_BYTES_BUSY, _BUFFER_GROWTH * len(self._buffer)))
            if capacity <= UNCOUNTED_BYTES or self._router.request_memory.try_allocate(self, capacity, needed):
                self._replace_buffer(start, end, capacity)
            else:
                self._stop_reading()
        elif start:
            self._view[:pending] = self._view[start:end]
            self._start, self._end = 0, pending

    def _replace_buffer(self, start: int, end: int, capacity: int) -> None:
        buffer = bytearray(capacity)
        buffer[: end - start] = self._view[start:end]
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start, self._end = 0, end - start

    def _stop_reading_when_full(self, start: int, pending: int) -> None:
        """Make room in a full buffer, or stop reading if unprocessed requests fill all of it.

        The unprocessed data consists of `pending` bytes from `start` on.
        """
        if start:
            self._view[:pending] = self._view[start : start + pending]
            self._start, self._end = 0, pending
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def release_idle_buffer(self) -> None:
        """Shrink the receive buffer if it is empty."""
        if self._start == self._end and len(self._buffer) > _BUFFER_BYTES_IDLE:
            self._buffer = bytearray(_BUFFER_BYTES_IDLE)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0
            self._router.request_memory.release(self)

    def retry_allocation(self) -> None:
        """Try again to receive a request for which there was no memory."""
        asyncio.get_running_loop().call_soon(self._resume_processing)

    def _resume(self) -> None:
        if self._closing or self.is_muted:
            return
        if self._start != self._end:
            # Process the requests in a separate callback, because the caller may be completing several delayed
            # requests.
            asyncio.get_running_loop().call_soon(self._resume_processing)
        elif not self._reading:
            self._resume_processing()

    def _resume_processing(self) -> None:
        if self._closing or self._transport is None:
            return
        self._process_requests()
        if not self._reading and self._end < len(self._buffer) and not self._closing:
            self._reading = True
            self._transport.resume_reading()

    # -- housekeeping ------------------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Shrink an idle buffer, and return whether the connection was active since the last call of this method."""
        if self._closing and self._transport is not None:
            self._transport.abort()  # a client that does not read would keep its last responses in memory
            return True
        if not self.active:
            self.release_idle_buffer()
        self._unwritten_bytes_at_sweep = self._transport.get_write_buffer_size() if self._transport is not None else 0
        was_active = self.active or self._requests_paused or bool(self._queue)
        self.active = False
        return was_active

    def abort(self, reason: str) -> None:
        """Close the connection immediately and drop unsent responses."""
        self.close(reason)
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_stuck(self) -> bool:
        """Whether responses are unsent, and the client has neither read nor sent a byte since the last `sweep`."""
        if not self._write_paused or self.active or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() == self._unwritten_bytes_at_sweep

    def detect_stalled_request(self) -> bool:
        """Return whether hardly any data of the current request has arrived since the last call.

        Return False if the memory pool is not under pressure, or if the client cannot send more data, because this
        connection waits for memory or for the end of an earlier request that is being processed.
        """
        memory = self._router.request_memory
        is_held_back = memory.is_waiting(self) or memory.is_in_process(self)
        pending_bytes = self._end - self._start
        progress_bytes = pending_bytes - self._pending_bytes_at_check
        self._pending_bytes_at_check = 0 if is_held_back else pending_bytes
        return memory.is_under_pressure and not is_held_back and 0 <= progress_bytes < _PROGRESS_BYTES_MIN

    @property
    def has_queued_requests(self) -> bool:
        """Whether received data waits because the connection is muted."""
        return self._start != self._end and self.is_muted

    @property
    def queued_response_count(self) -> int:
        """The number of responses that wait until the responses to earlier requests are sent."""
        return sum(slot.filled for slot in self._queue)

    @property
    def buffered_bytes(self) -> int:
        """The memory of this connection: its receive buffer, and the responses in the queue and in the transport."""
        unwritten_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return len(self._buffer) + self._queued_bytes + unwritten_bytes


def _round_up(needed: int) -> int:
    """Return the smallest power of two that is at least `needed`."""
    return 1 << (needed - 1).bit_length()


def _length(buffers: Buffers | None) -> int:
    return sum(map(len, buffers)) if buffers else 0
