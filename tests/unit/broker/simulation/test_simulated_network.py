"""Tests of SimulatedNetwork: ordering, blocked links, and connections of dead processes and machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace_broker.simulation.loop import SimulatedLoop, SimulatedNode
from headrace_broker.simulation.network import SimulatedNetwork


class CollectingProtocol(asyncio.Protocol):
    """A protocol that collects the received data."""

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


class ClientAndServer:
    """A client and a server, each on a simulated node of its own."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)  # type: ignore[abstract]
        self.network = SimulatedNetwork(self.loop)
        self.server, self.client = SimulatedNode("server"), SimulatedNode("client")
        self.accepted: list[CollectingProtocol] = []

    def listen(self) -> None:
        def accept() -> CollectingProtocol:
            self.accepted.append(CollectingProtocol())
            return self.accepted[-1]

        self.loop.run_in_node(self.server, self.network.listen, "server", 9, accept)

    async def connect(self) -> CollectingProtocol:
        async def work() -> CollectingProtocol:
            _, protocol = await self.loop.create_connection(CollectingProtocol, "server", 9)
            assert isinstance(protocol, CollectingProtocol)
            return protocol

        return await self.loop.run_in_node(self.client, lambda: self.loop.create_task(work()))

    def run(self, work: Callable[[ClientAndServer], Awaitable[None]]) -> None:
        async def main() -> None:
            self.listen()
            await work(self)

        self.loop.run(main())
        self.loop.close()


def test_simulated_connection_delivers_bytes_in_order() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        for number in range(200):
            peer.transport.write(bytes([number]))
        await asyncio.sleep(1)
        assert pair.accepted[0].data == bytes(range(200))

    ClientAndServer().run(work)


def test_blocked_link_delays_data_until_the_link_is_healed() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.isolate({"client"}, {"server"}, one_way=True)
        peer.transport.write(b"question")
        pair.accepted[0].transport.write(b"this way is open")
        await asyncio.sleep(10)
        assert (pair.accepted[0].data, peer.data) == (b"", b"this way is open")
        pair.network.heal()
        await asyncio.sleep(5)
        assert pair.accepted[0].data == b"question"

    ClientAndServer().run(work)


def test_connecting_over_a_blocked_link_hangs_until_the_link_is_healed() -> None:
    async def work(pair: ClientAndServer) -> None:
        pair.network.isolate({"client"}, {"server"})
        connecting = asyncio.ensure_future(pair.connect())
        await asyncio.sleep(10)
        assert not connecting.done()
        pair.network.heal()
        await asyncio.sleep(1)
        assert connecting.done()

    ClientAndServer().run(work)


def test_connections_of_a_killed_process_are_reset_and_new_connections_are_refused() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.loop.crash(pair.server)
        pair.network.on_process_exit(pair.server)
        await asyncio.sleep(0.1)
        assert isinstance(peer.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    ClientAndServer().run(work)


def test_machine_without_power_sends_nothing_until_it_restarts() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.powered_off.add("server")
        pair.loop.crash(pair.server)
        pair.network.on_process_exit(pair.server, silently=True)
        peer.transport.write(b"anybody?")
        await asyncio.sleep(10)
        assert peer.lost == []
        pair.network.powered_off.discard("server")
        pair.network.on_machine_started("server")
        await asyncio.sleep(1)
        assert isinstance(peer.lost[0], ConnectionResetError)

    ClientAndServer().run(work)


def test_reset_closes_connection_at_both_ends() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.reset_connections("server", "client")
        peer.transport.write(b"on the way")
        await asyncio.sleep(1)
        assert [type(error) for error in (*peer.lost, *pair.accepted[0].lost)] == [ConnectionResetError] * 2

    ClientAndServer().run(work)


def test_extra_latency_of_a_node_delays_its_messages() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.extra_latency_us["server"] = 400_000
        peer.transport.write(b"x")
        await asyncio.sleep(0.39)
        assert pair.accepted[0].data == b""
        await asyncio.sleep(0.05)
        assert pair.accepted[0].data == b"x"

    ClientAndServer().run(work)


def test_in_flight_data_of_a_closed_connection_arrives_after_data_of_a_newer_connection() -> None:
    async def work(pair: ClientAndServer) -> None:
        first = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.stall("client", "server", 2_000_000)
        first.transport.write(b"late")
        first.transport.abort()
        second = await pair.connect()
        second.transport.write(b"early")
        await asyncio.sleep(1)
        assert [peer.data for peer in pair.accepted] == [b"", b"early"]
        await asyncio.sleep(2)
        assert [peer.data for peer in pair.accepted] == [b"late", b"early"]
        assert pair.accepted[0].lost == [None]

    ClientAndServer().run(work)


def test_data_that_a_process_wrote_before_it_was_killed_still_arrives() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.isolate({"client"}, {"server"})
        peer.transport.write(b"last words")
        pair.loop.crash(pair.client)
        pair.network.on_process_exit(pair.client)
        await asyncio.sleep(1)
        pair.network.heal()
        await asyncio.sleep(5)
        assert (pair.accepted[0].data, pair.accepted[0].lost) == (b"last words", [None])

    ClientAndServer().run(work)


def test_new_connection_after_a_long_outage_is_established_before_delayed_data_of_an_old_connection_arrives() -> None:
    async def work(pair: ClientAndServer) -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.network.isolate({"client"}, {"server"})
        peer.transport.write(b"held back")
        await asyncio.sleep(2)
        pair.network.heal()
        await pair.connect()
        assert pair.accepted[0].data == b""
        await asyncio.sleep(3)
        assert pair.accepted[0].data == b"held back"

    ClientAndServer().run(work)
