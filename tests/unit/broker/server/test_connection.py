"""Tests of Connection: framing, the order of responses, limits on memory, and busy polling."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.server.network.busy_poll import BusyPoll
from headrace_broker.server.network.connection import Connection, ConnectionLimits, ResponseSlot
from headrace_broker.server.network.foreign_protocols import ForeignProtocols
from headrace_broker.server.network.purgatory import Purgatory
from headrace_broker.server.network.request_memory import RequestMemoryPool


class FakeTransport:
    """A transport that collects the written bytes. `unwritten_bytes` simulates a client that does not read."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unwritten_bytes = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 5000)

    def writelines(self, buffers: list[bytes]) -> None:
        self.writes += 1
        for buffer in buffers:
            self.written += buffer

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unwritten_bytes


class FakeRouter:
    """A router that echoes each frame, unless the first byte of the frame is a command.

    * P delays the response.
    * H delays the response and mutes the connection.
    * W pauses the connection's requests.
    * X raises a ProtocolError.
    * Z calls `act`.
    * 0 sends no response.
    """

    def __init__(self, memory: RequestMemoryPool | None = None) -> None:
        self.frames: list[bytes] = []
        self.slots: list[ResponseSlot] = []
        self.is_disconnected = False
        self.unsent_bytes = 0
        self.request_memory = memory or RequestMemoryPool(1 << 30)
        self.foreign_protocols = ForeignProtocols()
        self.busy_poll = BusyPoll(cast(asyncio.AbstractEventLoop, None), processors=1)
        self.act: Callable[[Connection, bytes], None] | None = None

    def handle(self, connection: Connection, frame: memoryview) -> None:
        data = bytes(frame)
        self.frames.append(data)
        match data[:1]:
            case b"P":
                self.slots.append(connection.reserve_response())
            case b"H":
                self.slots.append(connection.reserve_response_and_mute())
            case b"W":
                connection.pause_requests()
            case b"X":
                raise ProtocolError("broken")
            case b"0":
                return
            case b"Z":
                assert self.act is not None
                self.act(connection, data)
            case _:
                connection.reply((data,))

    def connected(self, connection: Connection) -> bool:
        return True

    def disconnected(self, connection: Connection) -> None:
        self.is_disconnected = True


class SimulatedClient:
    """A client whose connection has a fake router and a fake transport. `send` delivers bytes as a transport does."""

    def __init__(self, limits: ConnectionLimits | None = None, memory: RequestMemoryPool | None = None) -> None:
        self.router = FakeRouter(memory)
        self.transport = FakeTransport()
        self.connection = Connection(self.router, "PLAINTEXT", limits or ConnectionLimits(time_slice_s=600))
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes, step: int = 1 << 30) -> int:
        """Deliver `data` in chunks of `step` bytes, until all bytes are received or reading stops.

        Return the number of received bytes.
        """
        received = 0
        while received < len(data) and self.transport.reading and not self.transport.closed:
            buffer = self.connection.get_buffer(-1)
            size = min(step, len(buffer), len(data) - received)
            assert size > 0, "the connection returned an empty receive buffer"
            buffer[:size] = data[received : received + size]
            received += size
            self.connection.buffer_updated(size)
        return received


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def body(tag: bytes, size: int = 8) -> bytes:
    return tag + bytes(size - len(tag))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def client() -> SimulatedClient:
    return SimulatedClient()


SMALL = [8] * 50
MIXED = [8, 20_000, 8, 16_380, 16_384, 70_000, 8]
LARGE = [3_000_000, 8, 5_000_000]


@pytest.mark.parametrize(
    ("sizes", "step"),
    [(sizes, step) for sizes in (SMALL, MIXED) for step in (1, 3, 7, 100, 1 << 20)]
    + [(LARGE, 9_999), (LARGE, 1 << 20)],
)
def test_frames_are_reassembled_from_received_chunks_of_any_size(sizes: list[int], step: int) -> None:
    client = SimulatedClient()
    bodies = [bytes([65 + number % 7]) * size for number, size in enumerate(sizes)]
    client.send(b"".join(map(frame, bodies)), step)
    assert client.router.frames == bodies
    assert bytes(client.transport.written) == b"".join(bodies)


@pytest.mark.parametrize("size", [-1, 0, 7, 101, 2**31 - 1])
def test_invalid_request_size_closes_connection(size: int, caplog: pytest.LogCaptureFixture) -> None:
    client = SimulatedClient(ConnectionLimits(request_bytes_max=100, time_slice_s=600))
    client.send(struct.pack(">i", size) + bytes(50))
    assert client.transport.closed
    assert client.router.frames == []
    assert [record.getMessage() for record in caplog.records] == [
        f"Connection from 127.0.0.1:5000: closing the connection: request size {size} is not within 8..100 bytes"
    ]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the client uses TLS, but listener PLAINTEXT is a PLAINTEXT listener"),
        (b"GET / HTTP/1.1\r\n", "the client sent an HTTP request, but listener PLAINTEXT serves only Kafka's protocol"),
        (b"PRI * HTTP/2.0\r\n", "the client sent an HTTP request, but listener PLAINTEXT serves only Kafka's protocol"),
    ],
)
def test_connections_of_tls_and_http_clients_are_closed_and_one_log_line_names_the_protocol(
    start: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    for foreign_protocols in [ForeignProtocols()] * 3:
        client = SimulatedClient()
        client.router.foreign_protocols = foreign_protocols
        client.send(start)
        assert client.transport.closed
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"Connection from 127.0.0.1:5000: closing the connection: {text}")


def test_malformed_request_closes_connection_after_responses_to_earlier_requests_are_sent(
    client: SimulatedClient,
) -> None:
    client.send(frame(body(b"a")) + frame(body(b"X")) + frame(body(b"b")))
    assert bytes(client.transport.written) == body(b"a")
    assert client.transport.closed
    assert len(client.router.frames) == 2


@pytest.mark.anyio
async def test_responses_are_sent_in_order_of_requests(client: SimulatedClient) -> None:
    client.send(b"".join(frame(body(tag)) for tag in (b"a", b"P1", b"b", b"P2", b"c")))
    assert bytes(client.transport.written) == body(b"a")
    first, second = client.router.slots
    second.fill((b"two",))
    assert bytes(client.transport.written) == body(b"a")
    first.fill((b"one",))
    assert bytes(client.transport.written) == body(b"a") + b"one" + body(b"b") + b"two" + body(b"c")


@pytest.mark.anyio
async def test_responses_that_complete_together_are_sent_with_one_write(client: SimulatedClient) -> None:
    purgatory = Purgatory(asyncio.get_running_loop())
    client.send(b"".join(frame(body(b"P")) for _ in range(5)))
    for number, slot in enumerate(client.router.slots):
        response = b"%d" % number
        purgatory.watch(partial(slot.fill, (response,)), [], 1000, required_offsets={"a": number})
    purgatory.try_complete("a", 3, 1)
    purgatory.complete_due()
    assert bytes(client.transport.written) == b"0123"
    assert client.transport.writes == 1
    purgatory.close()


@pytest.mark.anyio
async def test_later_requests_wait_while_a_request_mutes_its_connection(client: SimulatedClient) -> None:
    client.send(frame(body(b"H")) + frame(body(b"a")))
    assert len(client.router.frames) == 1
    client.router.slots[0].fill((b"first",))
    await asyncio.sleep(0)
    assert bytes(client.transport.written) == b"first" + body(b"a")


@pytest.mark.anyio
async def test_connection_stops_reading_requests_of_client_that_does_not_read_responses(
    client: SimulatedClient,
) -> None:
    client.connection.pause_writing()
    received = client.send(frame(body(b"a", 1000)) * 1000)
    assert received < 40_000
    assert not client.transport.reading
    assert client.router.frames == []
    assert client.connection.buffered_bytes < 64 * 1024
    client.connection.resume_writing()
    await asyncio.sleep(0)
    assert client.transport.reading
    assert len(client.router.frames) == received // 1004


@pytest.mark.anyio
async def test_connection_is_muted_when_too_many_responses_wait_for_a_delayed_response() -> None:
    client = SimulatedClient(ConnectionLimits(queued_bytes_max=10_000, time_slice_s=600))
    client.send(frame(body(b"P")) + frame(body(b"a", 1000)) * 1000)
    assert 10 <= len(client.router.frames) <= 13
    assert not client.transport.reading
    client.router.slots[0].fill((b"one",))
    await asyncio.sleep(0)
    assert client.transport.reading


@pytest.mark.anyio
async def test_connection_is_muted_when_too_many_of_its_requests_are_delayed() -> None:
    client = SimulatedClient(ConnectionLimits(queued_responses_max=10, time_slice_s=600))
    client.send(frame(body(b"P")) * 5000)
    assert len(client.router.slots) == 10
    assert not client.transport.reading
    for slot in list(client.router.slots):
        slot.fill((b"x",))
    await asyncio.sleep(0)
    assert len(client.router.slots) == 20
    assert bytes(client.transport.written) == b"x" * 10


@pytest.mark.anyio
async def test_unsent_response_bytes_are_counted_until_they_are_sent_or_the_client_disconnects(
    client: SimulatedClient,
) -> None:
    client.send(frame(body(b"P")) + frame(body(b"a", 1000)) + frame(body(b"P")) + frame(body(b"b", 500)))
    assert client.router.unsent_bytes == 1500
    client.router.slots[0].fill((b"one",))
    assert client.router.unsent_bytes == 500
    client.transport.unwritten_bytes = 1003
    client.connection.pause_writing()
    assert client.router.unsent_bytes == 1503
    client.connection.resume_writing()
    assert client.router.unsent_bytes == 500
    client.connection.pause_writing()
    client.connection.connection_lost(None)
    client.router.slots[1].fill((b"two",))
    assert client.router.unsent_bytes == 0


def test_connection_counts_as_stuck_when_its_client_neither_reads_nor_sends(client: SimulatedClient) -> None:
    client.send(frame(body(b"a", 1000)))
    client.transport.unwritten_bytes = 1000
    client.connection.pause_writing()
    assert not client.connection.is_stuck  # the client has just sent a request
    client.connection.sweep()
    assert client.connection.is_stuck
    client.transport.unwritten_bytes = 900
    assert not client.connection.is_stuck
    client.connection.sweep()
    assert client.connection.is_stuck
    client.connection.abort("enough")
    assert client.transport.aborted


@pytest.mark.anyio
async def test_bytes_of_delayed_requests_count_towards_the_limit_of_queued_bytes() -> None:
    client = SimulatedClient(ConnectionLimits(queued_bytes_max=100_000, time_slice_s=600))
    handle = client.router.handle

    def delay(connection: Connection, frame: memoryview) -> None:
        client.router.frames.append(bytes(frame))
        client.router.slots.append(connection.reserve_response(len(frame)))

    client.router.handle = delay  # type: ignore[method-assign]
    client.send(frame(body(b"P", 1000)) * 1000)
    assert 10 <= len(client.router.slots) <= 15
    assert not client.transport.reading
    client.router.handle = handle  # type: ignore[method-assign]
    for slot in client.router.slots:
        slot.fill((b"x",))
    await asyncio.sleep(0)
    assert client.transport.reading


@pytest.mark.anyio
async def test_pipelined_requests_are_processed_in_time_slices() -> None:
    client = SimulatedClient(ConnectionLimits(time_slice_s=0))
    loop = asyncio.get_running_loop()
    frames_seen: list[int] = []

    def other_callback() -> None:
        frames_seen.append(len(client.router.frames))
        loop.call_soon(other_callback)

    loop.call_soon(other_callback)
    bodies = [body(b"a", 8 + number) for number in range(20)]
    client.send(b"".join(map(frame, bodies)))
    assert client.router.frames == bodies[:1]
    for _ in bodies:
        await asyncio.sleep(0)
    assert client.router.frames == bodies
    assert bytes(client.transport.written) == b"".join(bodies)
    assert frames_seen[:5] == [1, 2, 3, 4, 5]


@pytest.mark.anyio
async def test_connection_that_receives_eof_processes_pipelined_requests_before_it_closes() -> None:
    """A producer with acks=0 disconnects right after writing and does not retry its requests."""
    client = SimulatedClient(ConnectionLimits(time_slice_s=0))
    client.send(b"".join(frame(body(b"0")) for _ in range(20)) + frame(body(b"0"))[:-1])
    keeps_open = client.connection.eof_received()
    assert keeps_open
    assert len(client.router.frames) == 1
    for _ in range(19):
        assert not client.transport.closed
        await asyncio.sleep(0)
    assert len(client.router.frames) == 20
    assert client.transport.closed  # the incomplete request at the end is dropped


@pytest.mark.parametrize("waiting", [b"", frame(body(b"H")) + frame(body(b"0"))], ids=["nothing", "for a response"])
def test_eof_closes_connection_immediately_unless_a_request_will_be_processed_in_the_next_time_slice(
    client: SimulatedClient, waiting: bytes
) -> None:
    client.send(frame(body(b"0")) + waiting)
    assert not client.connection.eof_received()


@pytest.mark.anyio
async def test_connection_limits_apply_to_requests_that_are_processed_in_time_slices() -> None:
    client = SimulatedClient(ConnectionLimits(time_slice_s=0))
    received = client.send(frame(body(b"a", 1000)) * 2000)
    assert not client.transport.reading
    assert client.connection.buffered_bytes <= 512 * 1024
    for _ in range(received // 1004):
        await asyncio.sleep(0)
    assert len(client.router.frames) == received // 1004
    assert client.transport.reading


@pytest.mark.anyio
async def test_paused_connection_processes_no_request_and_its_request_can_still_reply_or_wait(
    client: SimulatedClient,
) -> None:
    client.send(frame(body(b"P")) + frame(body(b"W")) + frame(body(b"a")))
    client.send(frame(body(b"b")))
    assert [data[:1] for data in client.router.frames] == [b"P", b"W"]
    slot = client.connection.reserve_response()
    client.connection.resume_requests()
    await asyncio.sleep(0)
    assert [data[:1] for data in client.router.frames] == [b"P", b"W", b"a", b"b"]
    client.router.slots[0].fill((b"P",))
    assert client.transport.written == b"P"
    slot.fill((b"W",))
    assert client.transport.written == b"PW" + body(b"a") + body(b"b")


@pytest.mark.anyio
async def test_eof_closes_a_paused_connection_after_its_last_complete_request(client: SimulatedClient) -> None:
    """A thread may check the records of a request with acks=0 when the producer disconnects."""
    client.send(frame(body(b"W")) + frame(body(b"0")) + frame(body(b"W")) + frame(body(b"0"))[:-1])
    assert client.connection.eof_received()
    assert client.connection.sweep()
    for expected in ([b"W", b"0", b"W"], [b"W", b"0", b"W"]):
        assert not client.transport.closed
        client.connection.resume_requests()
        await asyncio.sleep(0)
        assert [data[:1] for data in client.router.frames] == expected
    assert client.transport.closed


def test_large_frame_size_allocates_no_memory_before_the_frame_arrives(client: SimulatedClient) -> None:
    client.send(struct.pack(">i", 100_000_000) + bytes(100_000))
    assert client.connection.buffered_bytes <= 4 * 1024 * 1024


def test_large_receive_buffer_of_an_idle_connection_shrinks(client: SimulatedClient) -> None:
    client.send(frame(body(b"a", 1_000_000)))
    assert client.connection.buffered_bytes > 1_000_000
    assert client.connection.sweep()
    assert not client.connection.sweep()
    assert client.connection.buffered_bytes == 16 * 1024
    client.send(frame(body(b"b")))
    assert client.router.frames[-1] == body(b"b")


def test_responses_that_complete_after_the_client_disconnects_are_dropped(client: SimulatedClient) -> None:
    client.send(frame(body(b"P")))
    client.connection.connection_lost(None)
    client.router.slots[0].fill((b"late",))
    client.connection.reply((b"late",))
    assert bytes(client.transport.written) == b""
    assert client.router.is_disconnected


def test_closed_connection_is_aborted_if_the_client_does_not_read_the_last_responses(client: SimulatedClient) -> None:
    """Without the abort, the last responses would stay in memory."""
    client.connection.close("enough")
    client.connection.sweep()
    assert client.transport.aborted


# -- memory shared by all connections --------------------------------------------------------------------------------


async def deliver(*streams: tuple[SimulatedClient, bytes]) -> None:
    """Deliver the clients' data in turn. Skip clients whose connections do not read."""
    left = dict(streams)
    for _ in range(10_000):
        left = {
            client: data[client.send(data, 50_000) :] if client.transport.reading else data
            for client, data in left.items()
        }
        left = {client: data for client, data in left.items() if data}
        if not left:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(left)} of {len(streams)} streams make no progress")


@pytest.mark.anyio
async def test_large_requests_of_many_clients_share_memory_limit_and_all_complete() -> None:
    memory = RequestMemoryPool(8 << 20)
    clients = [SimulatedClient(memory=memory) for _ in range(20)]
    bodies = [bytes([65 + number]) * 5_000_000 for number in range(20)]
    peak = 0

    def measured(user: object, capacity_bytes: int, request_bytes: int) -> bool:
        nonlocal peak
        is_allocated = RequestMemoryPool.try_allocate(memory, user, capacity_bytes, request_bytes)  # type: ignore[arg-type]
        peak = max(peak, memory.used_bytes)
        return is_allocated

    memory.try_allocate = measured  # type: ignore[method-assign]
    await deliver(*[(client, frame(content)) for client, content in zip(clients, bodies, strict=True)])
    assert [client.router.frames for client in clients] == [[content] for content in bodies]
    assert peak <= (8 << 20) + (8 << 20)  # the limit, and one request's buffer, whose size is a power of two
    assert not memory.is_under_pressure


@pytest.mark.anyio
async def test_request_that_waits_for_memory_is_not_detected_as_stalled() -> None:
    memory = RequestMemoryPool(4 << 20)
    stalled, waiting = SimulatedClient(memory=memory), SimulatedClient(memory=memory)
    stalled.send(frame(bytes(6_000_000))[:-1])
    received = waiting.send(frame(bytes(6_000_000)))
    assert not waiting.transport.reading
    assert received < 6_000_000
    for client in (stalled, waiting):
        assert not client.connection.detect_stalled_request()  # both clients have sent data since they connected
    assert stalled.connection.detect_stalled_request()
    assert not waiting.connection.detect_stalled_request()
    stalled.connection.connection_lost(None)
    await deliver((waiting, frame(bytes(6_000_000))[received:]))
    assert len(waiting.router.frames) == 1


@pytest.mark.anyio
async def test_requests_of_usual_size_are_received_while_large_requests_wait_for_memory() -> None:
    memory = RequestMemoryPool(16 << 20)
    large = [SimulatedClient(memory=memory) for _ in range(10)]
    for client in large:
        client.send(frame(bytes(9_000_000))[:-1])
    usual = SimulatedClient(memory=memory)
    usual.send(frame(bytes(1_000_000)))
    assert len(usual.router.frames) == 1


@pytest.mark.anyio
async def test_only_one_connection_exceeds_the_memory_limit_until_its_request_has_been_processed() -> None:
    memory = RequestMemoryPool(8 << 20)
    clients = [SimulatedClient(memory=memory) for _ in range(5)]
    in_process: list[SimulatedClient] = []

    def process_in_thread(client: SimulatedClient) -> None:
        def act(connection: Connection, data: bytes) -> None:
            memory.add_in_process(connection, len(data))
            connection.pause_requests()
            in_process.append(client)

        client.router.act = act

    data = frame(b"Z" + bytes(9_000_000))
    left = dict.fromkeys(clients, data)
    for client in clients:
        process_in_thread(client)
    for processed in range(1, 6):
        for _ in range(5):
            left = {client: rest[client.send(rest) :] for client, rest in left.items()}
            await asyncio.sleep(0)
        assert len(in_process) == 1, f"{len(in_process)} requests above the limit are in process"
        client = in_process.pop()
        if processed % 2:
            client.connection.connection_lost(None)  # the request is still being processed
            await asyncio.sleep(0)
            left = {client: rest[client.send(rest) :] for client, rest in left.items()}
            assert not in_process
        memory.release_in_process(client.connection)
        client.connection.resume_requests()
    assert (memory.used_bytes, memory.is_under_pressure) == (0, False)


@pytest.mark.anyio
async def test_requests_of_usual_size_are_received_while_a_request_above_the_limit_is_processed() -> None:
    memory = RequestMemoryPool(4 << 20)
    large, usual = SimulatedClient(memory=memory), SimulatedClient(memory=memory)
    large.router.act = lambda connection, data: memory.add_in_process(connection, len(data))
    large.send(frame(b"Z" + bytes(9_000_000)))
    usual.send(frame(bytes(1_000_000)))
    assert len(usual.router.frames) == 1


@pytest.mark.anyio
async def test_connection_is_not_detected_as_stalled_while_its_earlier_request_is_processed() -> None:
    memory = RequestMemoryPool(4 << 20)
    busy, waiting = SimulatedClient(memory=memory), SimulatedClient(memory=memory)

    def process_in_thread(connection: Connection, data: bytes) -> None:
        memory.add_in_process(connection, len(data))
        connection.pause_requests()

    busy.router.act = process_in_thread
    busy.send(frame(b"Z" + bytes(1_500_000)) + frame(b"Z" + bytes(6_000_000)))
    waiting.send(frame(bytes(6_000_000)))
    assert memory.is_waiting(waiting.connection)
    assert busy.connection in memory.holders()
    assert [busy.connection.detect_stalled_request() for _ in range(3)] == [False] * 3
    memory.release_in_process(busy.connection)
    assert [busy.connection.detect_stalled_request() for _ in range(2)] == [False, True]


def test_idle_receive_buffers_are_released_when_other_connections_need_memory() -> None:
    memory = RequestMemoryPool(3 << 20)
    idle, other = SimulatedClient(memory=memory), SimulatedClient(memory=memory)
    idle.send(frame(bytes(1_500_000)))
    assert memory.used_bytes == 2 << 20
    other.send(frame(bytes(1_500_000)))
    assert other.router.frames
    assert idle.connection.buffered_bytes == 16 * 1024


# -- busy polling ----------------------------------------------------------------------------------------------------


class FakeLoop:
    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, work: Callable[[], None]) -> None:
        self.due.append(work)

    def run_once(self) -> None:
        due, self.due = self.due, []
        for work in due:
            work()


def test_event_loop_starts_busy_polling_after_reads_in_quick_succession_and_stops_after_a_pause() -> None:
    loop, now_ns = FakeLoop(), 0
    busy_poll = BusyPoll(cast(asyncio.AbstractEventLoop, loop), processors=2, clock_ns=lambda: now_ns)
    for _ in range(50):
        now_ns += 600_000  # these reads are too far apart to start polling
        busy_poll.record_read(100)
        assert not loop.due
    for _ in range(16):
        now_ns += 100_000
        busy_poll.record_read(100)
    assert len(loop.due) == 1
    now_ns += 300_000
    loop.run_once()
    assert len(loop.due) == 1
    now_ns += 200_000
    loop.run_once()
    assert not loop.due
    now_ns += 1_000
    busy_poll.record_read(100)
    assert not loop.due  # polling starts again only after several reads in close succession


def test_event_loop_stops_busy_polling_after_a_large_read() -> None:
    loop, now_ns = FakeLoop(), 0
    busy_poll = BusyPoll(cast(asyncio.AbstractEventLoop, loop), processors=2, clock_ns=lambda: now_ns)
    for size_bytes in [100] * 15 + [100_000] + [100] * 15:
        now_ns += 1_000
        busy_poll.record_read(size_bytes)
        assert not loop.due
    busy_poll.record_read(100)
    assert len(loop.due) == 1
    busy_poll.record_read(100_000)
    loop.run_once()
    assert not loop.due
