"""The network between simulated nodes: TCP as processes see it, over links that are slow, cut or dead.

A connection delivers its bytes in order and in pieces.  A link that is cut holds them back, and connecting over it
hangs.  When it is healed a new connection works at once, an old one only after a while, for TCP has slowed down its
attempts: what was under way arrives then, though both sides may long have given it up, for the kernel goes on sending
what a closed connection, or a killed process, had written.  Without anything under way a killed process's connections
are reset; a vanished machine's fall silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from headrace_broker.simulation.loop import SimulatedLoop, SimulatedNode

if TYPE_CHECKING:
    from headrace_broker.server.network.endpoints import Listener

_RETRY_US = 200_000
_WRITE_HIGH_BYTES = 64 * 1024
_BACKOFF_US_MAX = 3_000_000


class SimulatedNetwork:
    """Who listens where, who can reach whom, and every connection there is."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.latency_us = (50, 500)
        self.cut: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], tuple[SimulatedNode, Callable[[], Any]]] = {}
        self._connections: dict[_End, None] = {}
        self.down: set[str] = set()
        """Machines without power: whoever connects to them hears nothing."""
        self.slow: dict[str, int] = {}
        """Nodes with that many microseconds of latency more."""
        self.pieces = 0
        self.digest = 0
        """A checksum over every piece that arrived, with its time: equal for equal histories."""
        self._next_port = 20_000
        loop.network = self

    def delay_us(self, *names: str) -> int:
        """One way between two nodes."""
        low, high = self.latency_us
        delay = low + int(self.loop.rng.random() * (high - low))
        if self.slow:
            delay += sum(self.slow.get(name, 0) for name in names)
        return delay

    def note(self, end: _End, piece: bytes | None) -> None:
        """A piece arrived."""
        self.pieces += 1
        self.digest = crc32(piece or b"", self.digest ^ (self.loop.now_us & 0xFFFFFFFF))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cut

    def isolate(self, names: set[str], others: set[str], *, one_way: bool = False) -> None:
        """Nothing gets from `names` to `others`, nor back unless it is one way."""
        for name in names:
            for other in others - names:
                self.cut.add((name, other))
                if not one_way:
                    self.cut.add((other, name))

    def heal(self) -> None:
        """Every link works again; what was held back arrives, sooner or later."""
        self.cut.clear()
        for end in list(self._connections):
            end.take_up()
            if end.peer.is_gone and not end.peer.is_sending:  # what told of its end was lost on the way
                self._reset(end)

    def stall(self, name: str, other: str, for_us: int) -> None:
        """What one node has on the way to another arrives so much later, and what it sends meanwhile on the same
        connections behind it; new ones are not concerned."""
        for end in list(self._connections):
            if end.node.name == name and end.peer.node.name == other:
                end.stall(for_us)

    def break_connections(self, name: str, other: str) -> None:
        """Every connection between two nodes is reset, with what is under way on it."""
        for end in list(self._connections):
            if end.node.name == name and end.peer.node.name == other:
                end.break_off()

    def booted(self, name: str) -> None:
        """A machine is back: it knows nothing of the connections that it had, and says so."""
        for end in list(self._connections):
            is_known = not end.peer.is_gone or end.peer.is_sending
            if end.peer.node.name == name and not is_known and not self.is_cut(name, end.node.name):
                self._reset(end)

    def _reset(self, end: _End) -> None:
        self.loop.after_us(self.delay_us(), end.node, end._lost, ConnectionResetError("reset by peer"))

    # -- listening ---------------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, factory: Callable[[], Any]) -> int:
        """Accept connections for the current node."""
        if port == 0:
            self._next_port += 1
            port = self._next_port
        node = self.loop.node()
        self._listeners[host, port] = (node, factory)
        return port

    def stop_listening(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """TCP's connect, from the current node."""
        loop, client = self.loop, self.loop.node()
        while True:
            await asyncio.sleep(self.delay_us() / 1e6)
            found = self._listeners.get((host, port))
            name = host if found is None else found[0].name
            if self.is_cut(client.name, name) or self.is_cut(name, client.name):
                await asyncio.sleep(_RETRY_US / 1e6)
                continue
            if found is None or found[0].is_dead:
                if name in self.down:
                    await asyncio.sleep(_RETRY_US / 1e6)
                    continue
                raise ConnectionRefusedError(f"connect to {host}:{port} refused")
            break
        node, server_factory = found
        ours, theirs = _End(self, client, (client.name, 1)), _End(self, node, (host, port))
        ours.peer, theirs.peer = theirs, ours
        self._connections |= {ours: None, theirs: None}
        protocol = factory()
        ours.protocol = protocol

        def accept() -> None:
            if not theirs.is_gone:
                theirs.protocol = server_factory()
                theirs.protocol.connection_made(theirs)
                theirs.pump_in()

        loop.after_us(self.delay_us(), node, accept)
        protocol.connection_made(ours)
        return ours, protocol

    def killed(self, node: SimulatedNode, *, silently: bool = False) -> None:
        """The node's process is gone: the kernel closes its connections, unless its machine is gone as well."""
        for key in [key for key, found in self._listeners.items() if found[0] is node]:
            del self._listeners[key]
        for end in [end for end in self._connections if end.node is node]:
            end.die(silently=silently)  # also what the kernel still had to send for those that were closed

    def forget(self, end: _End) -> None:
        self._connections.pop(end, None)


class _End(asyncio.Transport):
    """One end of a connection: the transport of the protocol on that node."""

    def __init__(self, network: SimulatedNetwork, node: SimulatedNode, name: tuple[str, int]) -> None:
        super().__init__()
        self.network = network
        self.node = node
        self.name = name
        self.protocol: Any = None
        self.peer: _End
        self.is_gone = False
        self._outgoing: deque[bytes | None] = deque()  # None is the end of the stream
        self._outgoing_bytes = 0
        self._arrived: deque[bytes | None] = deque()
        self._busy_until_us = 0
        self._stuck_since_us: int | None = None
        self._stalled_until_us = 0
        self._is_closing = False
        self._is_reading = True
        self._is_write_paused = False

    # -- what protocols call -----------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.is_gone or self._is_closing or self.node.is_dead or not len(data):
            return
        self._outgoing.append(bytes(data))
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes > _WRITE_HIGH_BYTES and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()
        self.pump()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are the simulation's."""

    def close(self) -> None:
        if not self._is_closing and not self.is_gone:
            self._is_closing = True
            self._outgoing.append(None)
            self.pump()
            self.network.loop.after_us(0, self.node, self._lost, None)

    def abort(self) -> None:
        if self.is_gone:
            return
        self._end_stream()
        self._is_closing = True
        self.network.loop.after_us(0, self.node, self._lost, None)

    def is_closing(self) -> bool:
        return self._is_closing or self.is_gone

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.network.loop.after_us(0, self.node, self.pump_in)

    def is_reading(self) -> bool:
        return self._is_reading

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.name, "sockname": self.name}.get(name, default)

    # -- the wire ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what waits, unless the link is cut or slow to be taken up."""
        network, loop = self.network, self.network.loop
        while self._outgoing:
            if network.is_cut(self.node.name, self.peer.node.name):
                self._stuck_since_us = self._stuck_since_us or loop.now_us
                return
            if loop.now_us < self._stalled_until_us:
                return
            piece = self._outgoing.popleft()
            self._busy_until_us = max(
                self._busy_until_us + 1, loop.now_us + network.delay_us(self.node.name, self.peer.node.name)
            )
            loop.after_us(self._busy_until_us - loop.now_us, self.peer.node, self.peer.arrive, piece)
        if self.is_gone:
            network.forget(self)

    def take_up(self) -> None:
        """The link works again; the longer nothing got through, the longer until the next attempt."""
        since_us, self._stuck_since_us = self._stuck_since_us, None
        if since_us is not None:
            loop = self.network.loop
            self.stall(int(loop.rng.random() * min(loop.now_us - since_us, _BACKOFF_US_MAX)))

    def stall(self, for_us: int) -> None:
        """Send nothing for so long."""
        loop = self.network.loop
        self._stalled_until_us = loop.now_us + for_us
        loop.after_us(for_us, loop.world, self.pump)

    @property
    def is_sending(self) -> bool:
        """Whether something is still to be sent; who has closed it no longer sees to that, the kernel does."""
        return bool(self._outgoing)

    def arrive(self, piece: bytes | None) -> None:
        """A piece got here."""
        sender = self.peer
        if piece is not None:
            sender.delivered(len(piece))
        if self.is_gone:
            return
        self.network.note(self, piece)
        self._arrived.append(piece)
        self.pump_in()

    def delivered(self, size: int) -> None:
        """So much less is under way."""
        self._outgoing_bytes -= size
        if self._is_write_paused and self._outgoing_bytes <= _WRITE_HIGH_BYTES // 4 and not self.node.is_dead:
            self._is_write_paused = False
            self.network.loop.after_us(0, self.node, self._resume_writing)

    def _resume_writing(self) -> None:
        if not self.is_gone:
            self.protocol.resume_writing()

    def pump_in(self) -> None:
        """Hand what arrived to the protocol."""
        while self._arrived and self._is_reading and not self.is_gone and self.protocol is not None:
            piece = self._arrived.popleft()
            if piece is None:
                self.protocol.eof_received()
                self.close()
                return
            self._feed(piece)

    def _feed(self, piece: bytes) -> None:
        protocol = self.protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(piece)
            return
        view = memoryview(piece)
        while len(view) and not self.is_gone:
            buffer = memoryview(cast(Any, protocol.get_buffer(len(view))))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]
            if not self._is_reading and len(view):
                self._arrived.appendleft(bytes(view))
                return

    # -- ends --------------------------------------------------------------------------------------------------------

    def die(self, *, silently: bool) -> None:
        """The process at this end is gone."""
        if silently:
            self._outgoing.clear()
        elif not self.is_gone:
            self._end_stream()
        self._go()

    def break_off(self) -> None:
        """The connection is reset at both ends."""
        for end in (self, self.peer):
            end._outgoing.clear()
            self.network._reset(end)

    def _end_stream(self) -> None:
        """Nobody is there any more to write or read: the peer is told so, behind what is under way."""
        network, peer = self.network, self.peer
        if self._outgoing:
            if not self._is_closing:
                self._outgoing.append(None)
        elif not peer.is_gone and not network.is_cut(self.node.name, peer.node.name):
            network._reset(peer)

    def _go(self) -> None:
        self.is_gone = True
        if not self._outgoing:
            self.network.forget(self)

    def _lost(self, error: Exception | None) -> None:
        if self.is_gone:
            return
        self._go()
        if self.protocol is not None:
            self.protocol.connection_lost(error)


class SimulatedListening:
    """`server.network.listening.Listening` for a simulated node."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self.listeners: list[Listener] = []

    def bind(self, listener: Listener) -> Listener:
        """Take the listener's port; nobody is served yet."""
        from dataclasses import replace

        port = listener.port
        if port == 0:
            self._network._next_port += 1
            port = self._network._next_port
        bound = replace(listener, port=port)
        self.listeners.append(bound)
        return bound

    async def serve(self, new_connection: Callable[[str], Any], listeners: Sequence[Listener]) -> None:
        """Accept connections on these of the bound listeners from now on."""
        names = {item.name for item in listeners}
        for item in self.listeners:
            if item.name not in names:
                continue
            self._network.listen(item.host, item.port, lambda name=item.name: new_connection(name))  # type: ignore[misc]

    def close(self) -> None:
        """Accept nothing more."""
        for item in self.listeners:
            self._network.stop_listening(item.host, item.port)
