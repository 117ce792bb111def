"""The simulated network: order, links that are cut, and how the end of a process or a machine shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace_broker.simulation.loop import SimulatedLoop, SimulatedNode
from headrace_broker.simulation.network import SimulatedNetwork


class Peer(asyncio.Protocol):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Two:
    """A server and a client, each on a node."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)  # type: ignore[abstract]
        self.network = SimulatedNetwork(self.loop)
        self.server, self.client = SimulatedNode("server"), SimulatedNode("client")
        self.accepted: list[Peer] = []

    def listen(self) -> None:
        def accept() -> Peer:
            self.accepted.append(Peer())
            return self.accepted[-1]

        self.loop.within(self.server, self.network.listen, "server", 9, accept)

    async def connect(self) -> Peer:
        async def work() -> Peer:
            _, protocol = await self.loop.create_connection(Peer, "server", 9)
            assert isinstance(protocol, Peer)
            return protocol

        return await self.loop.within(self.client, lambda: self.loop.create_task(work()))

    def run(self, work: Callable[[Two], Awaitable[None]]) -> None:
        async def main() -> None:
            self.listen()
            await work(self)

        self.loop.run(main())
        self.loop.close()


def test_bytes_arrive_in_order() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        for number in range(200):
            peer.transport.write(bytes([number]))
        await asyncio.sleep(1)
        assert two.accepted[0].data == bytes(range(200))

    Two().run(work)


def test_a_cut_link_holds_bytes_back_until_it_is_healed() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.isolate({"client"}, {"server"}, one_way=True)
        peer.transport.write(b"question")
        two.accepted[0].transport.write(b"this way is open")
        await asyncio.sleep(10)
        assert (two.accepted[0].data, peer.data) == (b"", b"this way is open")
        two.network.heal()
        await asyncio.sleep(5)
        assert two.accepted[0].data == b"question"

    Two().run(work)


def test_connecting_over_a_cut_link_hangs_until_it_is_healed() -> None:
    async def work(two: Two) -> None:
        two.network.isolate({"client"}, {"server"})
        connecting = asyncio.ensure_future(two.connect())
        await asyncio.sleep(10)
        assert not connecting.done()
        two.network.heal()
        await asyncio.sleep(1)
        assert connecting.done()

    Two().run(work)


def test_a_killed_process_resets_its_connections_and_refuses_new_ones() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.loop.crash(two.server)
        two.network.killed(two.server)
        await asyncio.sleep(0.1)
        assert isinstance(peer.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await two.connect()

    Two().run(work)


def test_a_machine_without_power_is_silent_until_it_is_back() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.down.add("server")
        two.loop.crash(two.server)
        two.network.killed(two.server, silently=True)
        peer.transport.write(b"anybody?")
        await asyncio.sleep(10)
        assert peer.lost == []
        two.network.down.discard("server")
        two.network.booted("server")
        await asyncio.sleep(1)
        assert isinstance(peer.lost[0], ConnectionResetError)

    Two().run(work)


def test_a_connection_that_breaks_is_lost_at_both_ends() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.break_connections("server", "client")
        peer.transport.write(b"on the way")
        await asyncio.sleep(1)
        assert [type(error) for error in (*peer.lost, *two.accepted[0].lost)] == [ConnectionResetError] * 2

    Two().run(work)


def test_latency_of_one_node_delays_its_messages() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.slow["server"] = 400_000
        peer.transport.write(b"x")
        await asyncio.sleep(0.39)
        assert two.accepted[0].data == b""
        await asyncio.sleep(0.05)
        assert two.accepted[0].data == b"x"

    Two().run(work)


def test_what_a_closed_connection_had_under_way_arrives_after_the_next_one_works() -> None:
    async def work(two: Two) -> None:
        first = await two.connect()
        await asyncio.sleep(0.1)
        two.network.stall("client", "server", 2_000_000)
        first.transport.write(b"late")
        first.transport.abort()
        second = await two.connect()
        second.transport.write(b"early")
        await asyncio.sleep(1)
        assert [peer.data for peer in two.accepted] == [b"", b"early"]
        await asyncio.sleep(2)
        assert [peer.data for peer in two.accepted] == [b"late", b"early"]
        assert two.accepted[0].lost == [None]

    Two().run(work)


def test_a_killed_process_has_sent_what_it_wrote() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.isolate({"client"}, {"server"})
        peer.transport.write(b"last words")
        two.loop.crash(two.client)
        two.network.killed(two.client)
        await asyncio.sleep(1)
        two.network.heal()
        await asyncio.sleep(5)
        assert (two.accepted[0].data, two.accepted[0].lost) == (b"last words", [None])

    Two().run(work)


def test_after_a_long_cut_old_connections_are_taken_up_later_than_new_ones_are_made() -> None:
    async def work(two: Two) -> None:
        peer = await two.connect()
        await asyncio.sleep(0.1)
        two.network.isolate({"client"}, {"server"})
        peer.transport.write(b"held back")
        await asyncio.sleep(2)
        two.network.heal()
        await two.connect()
        assert two.accepted[0].data == b""
        await asyncio.sleep(3)
        assert two.accepted[0].data == b"held back"

    Two().run(work)
