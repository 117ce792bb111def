"""One client connection: frames in, responses out in request order, memory bounded both ways.

The transport writes straight into one receive buffer per connection, which starts small, grows to the frame that is
coming in (and while reads fill it, so that a busy peer costs fewer of them) and shrinks again when idle.  A frame is
handed to the router as a memoryview of that buffer; the router is done with the view when it returns, so the buffer
can be used again at once.

Order: responses leave in the order of their requests.  Produce and Fetch may park (`Slot`) without holding up the
requests behind them; any other request that must wait holds the connection, as the protocol promises clients.  A
connection takes no further request (it is *muted*) while such a request runs, while the peer does not read its
responses, or while too much waits behind a parked one: then the receive buffer fills, reading stops, and TCP tells
the peer.  Nothing here can grow past the limits in `ConnectionLimits` plus one response; what large requests take in
all is bounded by `ReceiveMemory`.

Fairness: a peer that sends many requests ahead has them answered in turns, between which the loop serves the others.
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
from headrace_broker.server.network.receive_memory import UNCOUNTED_BYTES, ReceiveMemory
from headrace_broker.server.network.refused_batches import RefusedBatches
from headrace_broker.server.network.wakefulness import Wakefulness

logger = logging.getLogger(__name__)

Buffers = Sequence[bytes | bytearray | memoryview]

_SIZE = Struct(">i")
_BUFFER_BYTES_IDLE = 16 * 1024
_BUFFER_BYTES_BUSY = UNCOUNTED_BYTES
_BUFFER_GROWTH = 4
_PROGRESS_BYTES_MIN = 16 * 1024
_FRAME_BYTES_MIN = 8
_PARKED_BYTES_PER_FRAME_BYTE = 8
"""What a decoded request takes while it waits, against its frame: measured with fetches of many partitions."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection."""

    request_bytes_max: int = 104_857_600
    parked_requests_max: int = 1000
    held_bytes_max: int = 4 * 1024 * 1024
    turn_s: float = 0.005


class Router(Protocol):
    """Whoever answers requests; `handle` may call the connection's `reply`, `park`, `hold` or `close`.

    `unsent_bytes` counts the answers of all connections that wait for their turn or for a peer that does not read.
    """

    unsent_bytes: int
    wakefulness: Wakefulness
    receive_memory: ReceiveMemory

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Take one request; raises ProtocolError when the frame breaks the protocol."""

    def connected(self, connection: Connection) -> bool:
        """A peer connected; False refuses it."""

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone; whatever is parked for it may be dropped."""


class Slot:
    """The place of one response in the connection's queue, filled when the parked request is answered."""

    __slots__ = ("_connection", "buffers", "filled", "holds", "request_bytes")

    def __init__(self, connection: Connection, *, holds: bool = False, request_bytes: int = 0) -> None:
        self._connection: Connection | None = connection
        self.request_bytes = request_bytes
        self.buffers: Buffers | None = None
        self.filled = False
        self.holds = holds

    def fill(self, buffers: Buffers) -> None:
        """Answer the request; a slot whose connection is gone ignores it."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.filled:
            self.buffers = buffers
            self.filled = True
            connection.slot_filled(self)


class Connection(asyncio.BufferedProtocol):
    """The asyncio side of a connection; see the module's text for what it guarantees."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_end",
        "_has_ended",
        "_held_bytes",
        "_holding",
        "_limits",
        "_queue",
        "_reading",
        "_router",
        "_seen_bytes",
        "_start",
        "_swept_bytes",
        "_transport",
        "_turn_is_over",
        "_unsent_bytes",
        "_unwritten_bytes",
        "_view",
        "_write_paused",
        "active",
        "client_host",
        "listener",
        "on_lost",
        "parked",
        "peer",
        "refused_batches",
    )

    slot_type: type[Slot] = Slot

    def __init__(self, router: Router, listener: str, limits: ConnectionLimits) -> None:
        self._router = router
        self._limits = limits
        self.listener = listener
        self._buffer = bytearray(_BUFFER_BYTES_IDLE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._queue: deque[Slot] = deque()
        self._held_bytes = 0
        self._unsent_bytes = 0
        self._unwritten_bytes = 0
        self._swept_bytes = -1
        self._seen_bytes = 0
        self._holding = False
        self._write_paused = False
        self._turn_is_over = False
        self._reading = True
        self._has_ended = False
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self.active = True
        self.peer = "?"
        self.client_host = ""
        self.parked: dict[object, None] = {}
        self.refused_batches = RefusedBatches()
        self.on_lost: Callable[[], None] | None = None

    # -- what the transport calls ------------------------------------------------------------------------------

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
        self._take_requests()
        if not self._end:
            self._router.wakefulness.heard(nbytes)

    def eof_received(self) -> bool:
        """What has come in whole is still taken, as by Kafka: who writes with acks=0 goes when it has written."""
        self._has_ended = True
        return self._waits_for_its_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._queue.clear()
        self._held_bytes = 0
        self._count_unsent(-self._unsent_bytes)
        self._router.disconnected(self)
        if self.on_lost is not None:
            self.on_lost()
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._router.receive_memory.give_back(self)

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

    # -- what the router calls while it handles a request -----------------------------------------------------

    def reply(self, buffers: Buffers) -> None:
        """Answer the request that is being handled."""
        if self._queue:
            slot = Slot(self)
            self._queue.append(slot)
            slot.fill(buffers)
        elif self._transport is not None:
            self._transport.writelines(buffers)

    def park(self, frame_bytes: int = 0) -> Slot:
        """Keep a place for an answer that comes later; requests behind it go on, unless those that wait hold much."""
        slot = self.slot_type(self, request_bytes=_PARKED_BYTES_PER_FRAME_BYTE * frame_bytes)
        self._held_bytes += slot.request_bytes
        self._queue.append(slot)
        return slot

    def hold(self) -> Slot:
        """Keep a place for an answer that comes later, and take no request until it has come."""
        self._holding = True
        slot = self.slot_type(self, holds=True)
        self._queue.append(slot)
        return slot

    def close(self, reason: str = "") -> None:
        """Close; what was already answered in order is still sent.  A reason makes one line in the log."""
        if self._closing:
            return
        self._closing = True
        if reason:
            logger.warning("closing connection from %s: %s", self.peer, reason)
        if self._transport is not None:
            self._transport.close()

    # -- slots -------------------------------------------------------------------------------------------------

    def slot_filled(self, slot: Slot) -> None:
        """A parked or held request has its answer: send every answer whose turn it is."""
        queue = self._queue
        if not queue:
            return
        if slot.holds:
            self._holding = False
        answer_bytes = _length(slot.buffers)
        self._held_bytes += answer_bytes - slot.request_bytes
        self._count_unsent(answer_bytes)
        if queue[0].filled:
            answered = []
            while queue and queue[0].filled:
                answered.append(queue.popleft())
            self._send(answered)
        self._resume()

    def _send(self, answered: list[Slot]) -> None:
        """Write the answers of all these with one call."""
        buffers = [buffer for slot in answered for buffer in slot.buffers or ()]
        sent_bytes = _length(buffers)
        self._held_bytes -= sent_bytes
        self._count_unsent(-sent_bytes)
        if self._transport is not None and buffers:
            self._transport.writelines(buffers)

    def _count_unsent(self, change_bytes: int) -> None:
        self._unsent_bytes += change_bytes
        self._router.unsent_bytes += change_bytes

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def muted(self) -> bool:
        """True while no further request is taken."""
        return (
            self._holding
            or self._write_paused
            or self._turn_is_over
            or self._closing
            or self._held_bytes > self._limits.held_bytes_max
            or len(self._queue) >= self._limits.parked_requests_max
        )

    def _take_requests(self) -> None:
        start, end, view = self._start, self._end, self._view
        turn_ends_s = monotonic() + self._limits.turn_s
        try:
            while end - start >= 4 and not (
                self._write_paused or self._turn_is_over or self._closing or (self._queue and self.muted)
            ):
                (size,) = _SIZE.unpack_from(view, start)
                if not _FRAME_BYTES_MIN <= size <= self._limits.request_bytes_max:
                    self.close(
                        f"frame of {size} bytes, allowed are {_FRAME_BYTES_MIN}..{self._limits.request_bytes_max}"
                    )
                    return
                stop = start + 4 + size
                if stop > end:
                    break
                self._start = stop
                self._router.handle(self, view[start + 4 : stop])
                start = stop
                if end - start >= 4 and monotonic() >= turn_ends_s:
                    self._end_turn()
        except ProtocolError as error:
            self.close(str(error))
            return
        self._start = start
        self._make_room(start, end)
        if self._has_ended and not self._waits_for_its_turn():
            self.close()

    def _waits_for_its_turn(self) -> bool:
        """Whether a whole request is there; one that waits for other answers would wait for who is gone."""
        pending = self._end - self._start
        return self._turn_is_over and pending >= 4 and pending - 4 >= _SIZE.unpack_from(self._view, self._start)[0]

    def _end_turn(self) -> None:
        self._turn_is_over = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_over = False
        self._take_up_again()

    def _make_room(self, start: int, end: int) -> None:
        if end == len(self._buffer) < _BUFFER_BYTES_BUSY and not self.muted:
            self._replace_buffer(start, end, 2 * end)  # more was there to read than fitted
            start, end = 0, self._end
        if start == end:
            self._start = self._end = 0
            if len(self._buffer) > UNCOUNTED_BYTES and self._router.receive_memory.is_short:
                self.give_back_idle_buffer()
            return
        pending = end - start
        if start and pending <= UNCOUNTED_BYTES < len(self._buffer) and self._router.receive_memory.is_short:
            self._replace_buffer(start, end, UNCOUNTED_BYTES)
            self._router.receive_memory.give_back(self)
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
        """A larger buffer for a frame of `needed` bytes; big ones only as fast as their bytes really come in."""
        pending = end - start
        if pending == len(self._buffer) or needed <= _BUFFER_BYTES_BUSY:
            capacity = min(_round_up(needed), max(_BUFFER_BYTES_BUSY, _BUFFER_GROWTH * len(self._buffer)))
            if capacity <= UNCOUNTED_BYTES or self._router.receive_memory.take(self, capacity, needed):
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
        """Muted with complete frames waiting: make what room there is, else let TCP hold the peer."""
        if start:
            self._view[:pending] = self._view[start : start + pending]
            self._start, self._end = 0, pending
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def give_back_idle_buffer(self) -> None:
        """Shrink the receive buffer if there is nothing in it."""
        if self._start == self._end and len(self._buffer) > _BUFFER_BYTES_IDLE:
            self._buffer = bytearray(_BUFFER_BYTES_IDLE)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0
            self._router.receive_memory.give_back(self)

    def memory_may_be_free(self) -> None:
        """Go on with a request for which there was no memory."""
        asyncio.get_running_loop().call_soon(self._take_up_again)

    def _resume(self) -> None:
        if self._closing or self.muted:
            return
        if self._start != self._end:
            # Not from here: the caller may be in the middle of answering several parked requests.
            asyncio.get_running_loop().call_soon(self._take_up_again)
        elif not self._reading:
            self._take_up_again()

    def _take_up_again(self) -> None:
        if self._closing or self._transport is None:
            return
        self._take_requests()
        if not self._reading and self._end < len(self._buffer) and not self._closing:
            self._reading = True
            self._transport.resume_reading()

    # -- housekeeping ------------------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Called now and then: give back a large idle buffer.  Returns whether anything went on since the last call."""
        if self._closing and self._transport is not None:
            self._transport.abort()  # a peer that does not read would keep its last responses alive
            return True
        if not self.active:
            self.give_back_idle_buffer()
        self._swept_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        was_active = self.active or bool(self._queue)
        self.active = False
        return was_active

    def abort(self, reason: str) -> None:
        """Close at once, whatever has not been sent yet."""
        self.close(reason)
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_stuck(self) -> bool:
        """Whether the peer has neither read nor sent a byte since the last `sweep`, though answers wait for it."""
        if not self._write_paused or self.active or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() == self._swept_bytes

    def hoards_memory(self) -> bool:
        """Whether next to nothing of a request came in since this was last asked, though others wait for its memory."""
        memory = self._router.receive_memory
        pending_bytes = self._end - self._start
        progress_bytes = pending_bytes - self._seen_bytes
        self._seen_bytes = 0 if memory.is_waiting(self) else pending_bytes
        return memory.is_short and not memory.is_waiting(self) and 0 <= progress_bytes < _PROGRESS_BYTES_MIN

    @property
    def has_requests_waiting(self) -> bool:
        """Whether there is something to take as soon as the connection is no longer muted."""
        return self._start != self._end and self.muted

    @property
    def answers_waiting(self) -> int:
        """How many answers wait for those of earlier requests."""
        return sum(slot.filled for slot in self._queue)

    @property
    def buffered_bytes(self) -> int:
        """Memory this connection holds: its receive buffer, responses in the queue and in the transport."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return len(self._buffer) + self._held_bytes + waiting


def _round_up(needed: int) -> int:
    """The next power of two, so that a stream of equal frames fits twice or nearly so."""
    return 1 << (needed - 1).bit_length()


def _length(buffers: Buffers | None) -> int:
    return sum(map(len, buffers)) if buffers else 0
