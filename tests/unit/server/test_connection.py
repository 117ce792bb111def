"""The connection: frames however they are cut, answers in order, and bounds on what it holds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.server.network.connection import Connection, ConnectionLimits, Slot
from headrace_broker.server.network.receive_memory import ReceiveMemory
from headrace_broker.server.network.waiting import Waiting
from headrace_broker.server.network.wakefulness import Wakefulness


class FakeTransport:
    """Collects what is written; the peer may refuse to read."""

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
    """Answers each frame with itself unless told otherwise by the frame's first byte."""

    def __init__(self, memory: ReceiveMemory | None = None) -> None:
        self.frames: list[bytes] = []
        self.slots: list[Slot] = []
        self.gone = False
        self.unsent_bytes = 0
        self.receive_memory = memory or ReceiveMemory(1 << 30)
        self.wakefulness = Wakefulness(cast(asyncio.AbstractEventLoop, None), processors=1)
        self.act: Callable[[Connection, bytes], None] | None = None

    def handle(self, connection: Connection, frame: memoryview) -> None:
        data = bytes(frame)
        self.frames.append(data)
        match data[:1]:
            case b"P":
                self.slots.append(connection.park())
            case b"H":
                self.slots.append(connection.hold())
            case b"X":
                raise ProtocolError("broken")
            case b"0":
                return
            case _:
                connection.reply((data,))

    def connected(self, connection: Connection) -> bool:
        return True

    def disconnected(self, connection: Connection) -> None:
        self.gone = True


class Peer:
    """One connection with its fakes; `send` delivers bytes as a transport does."""

    def __init__(self, limits: ConnectionLimits | None = None, memory: ReceiveMemory | None = None) -> None:
        self.router = FakeRouter(memory)
        self.transport = FakeTransport()
        self.connection = Connection(self.router, "PLAINTEXT", limits or ConnectionLimits(turn_s=600))
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes, step: int = 1 << 30) -> int:
        """Deliver until all is taken or reading stops; returns how many bytes were taken."""
        taken = 0
        while taken < len(data) and self.transport.reading and not self.transport.closed:
            buffer = self.connection.get_buffer(-1)
            size = min(step, len(buffer), len(data) - taken)
            assert size > 0, "the transport was given no room"
            buffer[:size] = data[taken : taken + size]
            taken += size
            self.connection.buffer_updated(size)
        return taken


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def body(tag: bytes, size: int = 8) -> bytes:
    return tag + bytes(size - len(tag))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def peer() -> Peer:
    return Peer()


SMALL = [8] * 50
MIXED = [8, 20_000, 8, 16_380, 16_384, 70_000, 8]
LARGE = [3_000_000, 8, 5_000_000]


@pytest.mark.parametrize(
    ("sizes", "step"),
    [(sizes, step) for sizes in (SMALL, MIXED) for step in (1, 3, 7, 100, 1 << 20)]
    + [(LARGE, 9_999), (LARGE, 1 << 20)],
)
def test_frames_arrive_whole_however_they_are_cut(sizes: list[int], step: int) -> None:
    peer = Peer()
    bodies = [bytes([65 + number % 7]) * size for number, size in enumerate(sizes)]
    peer.send(b"".join(map(frame, bodies)), step)
    assert peer.router.frames == bodies
    assert bytes(peer.transport.written) == b"".join(bodies)


@pytest.mark.parametrize("size", [-1, 0, 7, 101, 2**31 - 1])
def test_a_frame_of_an_impossible_size_closes_the_connection(size: int, caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(ConnectionLimits(request_bytes_max=100, turn_s=600))
    peer.send(struct.pack(">i", size) + bytes(50))
    assert peer.transport.closed
    assert peer.router.frames == []
    assert [record.getMessage() for record in caplog.records] == [
        f"closing connection from 127.0.0.1:5000: frame of {size} bytes, allowed are 8..100"
    ]


def test_a_malformed_request_closes_the_connection_after_earlier_answers(peer: Peer) -> None:
    peer.send(frame(body(b"a")) + frame(body(b"X")) + frame(body(b"b")))
    assert bytes(peer.transport.written) == body(b"a")
    assert peer.transport.closed
    assert len(peer.router.frames) == 2


@pytest.mark.anyio
async def test_answers_leave_in_the_order_of_their_requests(peer: Peer) -> None:
    peer.send(b"".join(frame(body(tag)) for tag in (b"a", b"P1", b"b", b"P2", b"c")))
    assert bytes(peer.transport.written) == body(b"a")
    first, second = peer.router.slots
    second.fill((b"two",))
    assert bytes(peer.transport.written) == body(b"a")
    first.fill((b"one",))
    assert bytes(peer.transport.written) == body(b"a") + b"one" + body(b"b") + b"two" + body(b"c")


@pytest.mark.anyio
async def test_what_is_due_at_once_leaves_with_one_write(peer: Peer) -> None:
    waiting = Waiting(asyncio.get_running_loop())
    peer.send(b"".join(frame(body(b"P")) for _ in range(5)))
    for number, slot in enumerate(peer.router.slots):
        answer = b"%d" % number
        waiting.park(partial(slot.fill, (answer,)), [], 1000, required_offsets={"a": number})
    waiting.advanced("a", 3, 1)
    waiting.flush()
    assert bytes(peer.transport.written) == b"0123"
    assert peer.transport.writes == 1
    waiting.close()


@pytest.mark.anyio
async def test_a_held_request_keeps_the_next_ones_waiting(peer: Peer) -> None:
    peer.send(frame(body(b"H")) + frame(body(b"a")))
    assert len(peer.router.frames) == 1
    peer.router.slots[0].fill((b"held",))
    await asyncio.sleep(0)
    assert bytes(peer.transport.written) == b"held" + body(b"a")


@pytest.mark.anyio
async def test_a_peer_that_never_reads_is_not_read_from(peer: Peer) -> None:
    peer.connection.pause_writing()
    taken = peer.send(frame(body(b"a", 1000)) * 1000)
    assert taken < 40_000
    assert not peer.transport.reading
    assert peer.router.frames == []
    assert peer.connection.buffered_bytes < 64 * 1024
    peer.connection.resume_writing()
    await asyncio.sleep(0)
    assert peer.transport.reading
    assert len(peer.router.frames) == taken // 1004


@pytest.mark.anyio
async def test_answers_held_behind_a_parked_request_are_bounded() -> None:
    peer = Peer(ConnectionLimits(held_bytes_max=10_000, turn_s=600))
    peer.send(frame(body(b"P")) + frame(body(b"a", 1000)) * 1000)
    assert 10 <= len(peer.router.frames) <= 13
    assert not peer.transport.reading
    peer.router.slots[0].fill((b"one",))
    await asyncio.sleep(0)
    assert peer.transport.reading


@pytest.mark.anyio
async def test_parked_requests_are_bounded() -> None:
    peer = Peer(ConnectionLimits(parked_requests_max=10, turn_s=600))
    peer.send(frame(body(b"P")) * 5000)
    assert len(peer.router.slots) == 10
    assert not peer.transport.reading
    for slot in list(peer.router.slots):
        slot.fill((b"x",))
    await asyncio.sleep(0)
    assert len(peer.router.slots) == 20
    assert bytes(peer.transport.written) == b"x" * 10


@pytest.mark.anyio
async def test_unsent_answers_are_counted_until_they_are_sent_or_their_peer_is_gone(peer: Peer) -> None:
    peer.send(frame(body(b"P")) + frame(body(b"a", 1000)) + frame(body(b"P")) + frame(body(b"b", 500)))
    assert peer.router.unsent_bytes == 1500
    peer.router.slots[0].fill((b"one",))
    assert peer.router.unsent_bytes == 500
    peer.transport.unwritten_bytes = 1003
    peer.connection.pause_writing()
    assert peer.router.unsent_bytes == 1503
    peer.connection.resume_writing()
    assert peer.router.unsent_bytes == 500
    peer.connection.pause_writing()
    peer.connection.connection_lost(None)
    peer.router.slots[1].fill((b"two",))
    assert peer.router.unsent_bytes == 0


def test_a_peer_is_stuck_that_reads_and_sends_nothing_while_answers_wait(peer: Peer) -> None:
    peer.send(frame(body(b"a", 1000)))
    peer.transport.unwritten_bytes = 1000
    peer.connection.pause_writing()
    assert not peer.connection.is_stuck  # it has just sent something
    peer.connection.sweep()
    assert peer.connection.is_stuck
    peer.transport.unwritten_bytes = 900
    assert not peer.connection.is_stuck
    peer.connection.sweep()
    assert peer.connection.is_stuck
    peer.connection.abort("enough")
    assert peer.transport.aborted


@pytest.mark.anyio
async def test_requests_that_wait_count_as_held_bytes() -> None:
    peer = Peer(ConnectionLimits(held_bytes_max=100_000, turn_s=600))
    handle = peer.router.handle

    def park(connection: Connection, frame: memoryview) -> None:
        peer.router.frames.append(bytes(frame))
        peer.router.slots.append(connection.park(len(frame)))

    peer.router.handle = park  # type: ignore[method-assign]
    peer.send(frame(body(b"P", 1000)) * 1000)
    assert 10 <= len(peer.router.slots) <= 15
    assert not peer.transport.reading
    peer.router.handle = handle  # type: ignore[method-assign]
    for slot in peer.router.slots:
        slot.fill((b"x",))
    await asyncio.sleep(0)
    assert peer.transport.reading


@pytest.mark.anyio
async def test_requests_sent_ahead_are_answered_in_turns() -> None:
    peer = Peer(ConnectionLimits(turn_s=0))
    loop = asyncio.get_running_loop()
    between: list[int] = []

    def somebody_else() -> None:
        between.append(len(peer.router.frames))
        loop.call_soon(somebody_else)

    loop.call_soon(somebody_else)
    bodies = [body(b"a", 8 + number) for number in range(20)]
    peer.send(b"".join(map(frame, bodies)))
    assert peer.router.frames == bodies[:1]
    for _ in bodies:
        await asyncio.sleep(0)
    assert peer.router.frames == bodies
    assert bytes(peer.transport.written) == b"".join(bodies)
    assert between[:5] == [1, 2, 3, 4, 5]


@pytest.mark.anyio
async def test_what_was_sent_ahead_is_taken_before_the_connection_of_who_has_gone_ends() -> None:
    """Who writes with acks=0 goes as soon as it has written, and nobody would write that again."""
    peer = Peer(ConnectionLimits(turn_s=0))
    peer.send(b"".join(frame(body(b"0")) for _ in range(20)) + frame(body(b"0"))[:-1])
    keeps_open = peer.connection.eof_received()
    assert keeps_open
    assert len(peer.router.frames) == 1
    for _ in range(19):
        assert not peer.transport.closed
        await asyncio.sleep(0)
    assert len(peer.router.frames) == 20
    assert peer.transport.closed  # half a request is none


@pytest.mark.parametrize("waiting", [b"", frame(body(b"H")) + frame(body(b"0"))], ids=["nothing", "for an answer"])
def test_who_goes_is_let_go_at_once_where_nothing_waits_for_its_turn(peer: Peer, waiting: bytes) -> None:
    peer.send(frame(body(b"0")) + waiting)
    assert not peer.connection.eof_received()


@pytest.mark.anyio
async def test_turns_keep_the_bounds_of_a_connection() -> None:
    peer = Peer(ConnectionLimits(turn_s=0))
    taken = peer.send(frame(body(b"a", 1000)) * 2000)
    assert not peer.transport.reading
    assert peer.connection.buffered_bytes <= 512 * 1024
    for _ in range(taken // 1004):
        await asyncio.sleep(0)
    assert len(peer.router.frames) == taken // 1004
    assert peer.transport.reading


def test_a_frame_that_is_announced_but_does_not_come_costs_no_memory(peer: Peer) -> None:
    peer.send(struct.pack(">i", 100_000_000) + bytes(100_000))
    assert peer.connection.buffered_bytes <= 4 * 1024 * 1024


def test_a_large_buffer_is_given_back_when_idle(peer: Peer) -> None:
    peer.send(frame(body(b"a", 1_000_000)))
    assert peer.connection.buffered_bytes > 1_000_000
    assert peer.connection.sweep()
    assert not peer.connection.sweep()
    assert peer.connection.buffered_bytes == 16 * 1024
    peer.send(frame(body(b"b")))
    assert peer.router.frames[-1] == body(b"b")


def test_answers_after_the_connection_is_lost_go_nowhere(peer: Peer) -> None:
    peer.send(frame(body(b"P")))
    peer.connection.connection_lost(None)
    peer.router.slots[0].fill((b"late",))
    peer.connection.reply((b"late",))
    assert bytes(peer.transport.written) == b""
    assert peer.router.gone


def test_a_closing_connection_whose_peer_does_not_read_is_aborted(peer: Peer) -> None:
    peer.connection.close("enough")
    peer.connection.sweep()
    assert peer.transport.aborted


# -- memory shared by all connections --------------------------------------------------------------------------------


async def deliver(*streams: tuple[Peer, bytes]) -> None:
    """Send to every peer in turn until all is taken; what is held back comes when there is room."""
    left = dict(streams)
    for _ in range(10_000):
        left = {
            peer: data[peer.send(data, 50_000) :] if peer.transport.reading else data for peer, data in left.items()
        }
        left = {peer: data for peer, data in left.items() if data}
        if not left:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(left)} of {len(streams)} streams stand still")


@pytest.mark.anyio
async def test_large_requests_of_many_share_a_bound_and_all_arrive() -> None:
    memory = ReceiveMemory(8 << 20)
    peers = [Peer(memory=memory) for _ in range(20)]
    bodies = [bytes([65 + number]) * 5_000_000 for number in range(20)]
    peak = 0

    def measured(receiver: object, capacity_bytes: int, request_bytes: int) -> bool:
        nonlocal peak
        taken = ReceiveMemory.take(memory, receiver, capacity_bytes, request_bytes)  # type: ignore[arg-type]
        peak = max(peak, memory.used_bytes)
        return taken

    memory.take = measured  # type: ignore[method-assign]
    await deliver(*[(peer, frame(content)) for peer, content in zip(peers, bodies, strict=True)])
    assert [peer.router.frames for peer in peers] == [[content] for content in bodies]
    assert peak <= (8 << 20) + (8 << 20)  # the bound and one request, whose buffer is a power of two
    assert not memory.is_short


@pytest.mark.anyio
async def test_who_sends_half_a_request_and_stops_is_told_from_who_waits() -> None:
    memory = ReceiveMemory(4 << 20)
    silent, waiting = Peer(memory=memory), Peer(memory=memory)
    silent.send(frame(bytes(6_000_000))[:-1])
    taken = waiting.send(frame(bytes(6_000_000)))
    assert not waiting.transport.reading
    assert taken < 6_000_000
    for peer in (silent, waiting):
        assert not peer.connection.hoards_memory()  # both have sent something since they came
    assert silent.connection.hoards_memory()
    assert not waiting.connection.hoards_memory()
    silent.connection.connection_lost(None)
    await deliver((waiting, frame(bytes(6_000_000))[taken:]))
    assert len(waiting.router.frames) == 1


@pytest.mark.anyio
async def test_requests_of_the_usual_size_go_on_beside_large_ones() -> None:
    memory = ReceiveMemory(16 << 20)
    large = [Peer(memory=memory) for _ in range(10)]
    for peer in large:
        peer.send(frame(bytes(9_000_000))[:-1])
    usual = Peer(memory=memory)
    usual.send(frame(bytes(1_000_000)))
    assert len(usual.router.frames) == 1


def test_idle_buffers_are_given_back_when_others_need_them() -> None:
    memory = ReceiveMemory(3 << 20)
    idle, other = Peer(memory=memory), Peer(memory=memory)
    idle.send(frame(bytes(1_500_000)))
    assert memory.used_bytes == 2 << 20
    other.send(frame(bytes(1_500_000)))
    assert other.router.frames
    assert idle.connection.buffered_bytes == 16 * 1024


# -- staying awake ---------------------------------------------------------------------------------------------------


class FakeLoop:
    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, work: Callable[[], None]) -> None:
        self.due.append(work)

    def turn(self) -> None:
        due, self.due = self.due, []
        for work in due:
            work()


def test_the_loop_stays_awake_while_requests_follow_each_other_closely_and_for_one_pause() -> None:
    loop, now_ns = FakeLoop(), 0
    awake = Wakefulness(cast(asyncio.AbstractEventLoop, loop), processors=2, clock_ns=lambda: now_ns)
    for _ in range(50):
        now_ns += 600_000  # paced: no rhythm
        awake.heard(100)
        assert not loop.due
    for _ in range(16):
        now_ns += 100_000
        awake.heard(100)
    assert len(loop.due) == 1
    now_ns += 300_000
    loop.turn()
    assert len(loop.due) == 1
    now_ns += 200_000
    loop.turn()
    assert not loop.due
    now_ns += 1_000
    awake.heard(100)
    assert not loop.due  # the rhythm must be found again


def test_bulk_ends_the_rhythm() -> None:
    loop, now_ns = FakeLoop(), 0
    awake = Wakefulness(cast(asyncio.AbstractEventLoop, loop), processors=2, clock_ns=lambda: now_ns)
    for size_bytes in [100] * 15 + [100_000] + [100] * 15:
        now_ns += 1_000
        awake.heard(size_bytes)
        assert not loop.due
    awake.heard(100)
    assert len(loop.due) == 1
    awake.heard(100_000)
    loop.turn()
    assert not loop.due
