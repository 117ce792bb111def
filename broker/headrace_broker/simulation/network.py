"""The network between simulated nodes: TCP connections as processes see them, over slow, blocked or failed links.

A connection delivers bytes in order and in chunks. A blocked link delays the bytes. A connection attempt over a blocked
link hangs. After the link heals, a new connection works immediately. An old connection resumes later, because TCP backs
off its retransmissions.

When an old connection resumes, its in-flight data arrives even if both sides have closed the connection. The reason is
that the kernel sends all data that a process has written, even after the process closed the connection or was killed.

If a connection of a killed process has no in-flight data, the connection is reset. If a machine loses power, its
connections stay silent.
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

_CONNECT_RETRY_US = 200_000
_WRITE_HIGH_BYTES = 64 * 1024
_RETRANSMIT_BACKOFF_US_MAX = 3_000_000


class SimulatedNetwork:
    """The listeners, blocked links and connections of the simulated network."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.latency_us = (50, 500)
        self._blocked_links: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], tuple[SimulatedNode, Callable[[], Any]]] = {}
        self._connections: dict[_SimulatedTransport, None] = {}
        self.powered_off: set[str] = set()
        """The names of machines without power; a connection attempt to such a machine hangs."""
        self.extra_latency_us: dict[str, int] = {}
        """The additional latency of a node, by node name."""
        self.chunks = 0
        self.digest = 0
        """A checksum over all chunks that arrived and their arrival times; identical runs have equal digests."""
        self._next_port = 20_000
        loop.network = self

    def delay_us(self, *names: str) -> int:
        """Return a random one-way latency between the named nodes."""
        low, high = self.latency_us
        delay = low + int(self.loop.rng.random() * (high - low))
        if self.extra_latency_us:
            delay += sum(self.extra_latency_us.get(name, 0) for name in names)
        return delay

    def record_arrival(self, end: _SimulatedTransport, chunk: bytes | None) -> None:
        """Count a chunk that has arrived at `end`, and add it to the digest of all chunks that have arrived."""
        self.chunks += 1
        self.digest = crc32(chunk or b"", self.digest ^ (self.loop.now_us & 0xFFFFFFFF))

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked_links

    def isolate(self, names: set[str], others: set[str], *, one_way: bool = False) -> None:
        """Block the links from `names` to `others` and, unless `one_way`, in the opposite direction."""
        for name in names:
            for other in others - names:
                self._blocked_links.add((name, other))
                if not one_way:
                    self._blocked_links.add((other, name))

    def heal(self) -> None:
        """Unblock all links. Delayed data arrives after a random backoff."""
        self._blocked_links.clear()
        for end in list(self._connections):
            end.resume_after_heal()
            if end.peer.is_closed and not end.peer.has_unsent_data:  # the peer's FIN or RST was lost
                self._reset_later(end)

    def stall(self, name: str, other: str, for_us: int) -> None:
        """Send no data from `name` to `other` for `for_us`, on all existing connections. Do not delay new ones."""
        for end in list(self._connections):
            if end.node.name == name and end.peer.node.name == other:
                end.stall(for_us)

    def reset_connections(self, name: str, other: str) -> None:
        """Reset all connections between two nodes and drop the in-flight data."""
        for end in list(self._connections):
            if end.node.name == name and end.peer.node.name == other:
                end.reset()

    def on_machine_started(self, name: str) -> None:
        """Reset the remote ends of the connections that machine `name` had before it restarted."""
        for end in list(self._connections):
            is_open = not end.peer.is_closed or end.peer.has_unsent_data
            if end.peer.node.name == name and not is_open and not self.is_blocked(name, end.node.name):
                self._reset_later(end)

    def _reset_later(self, end: _SimulatedTransport) -> None:
        self.loop.call_after_us(self.delay_us(), end.node, end._connection_lost, ConnectionResetError("reset by peer"))

    # -- listening ---------------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, factory: Callable[[], Any]) -> int:
        """Accept connections to `host` and `port` for the current node, and return the port."""
        if port == 0:
            self._next_port += 1
            port = self._next_port
        node = self.loop.current_node()
        self._listeners[host, port] = (node, factory)
        return port

    def stop_listening(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Open a connection from the current node.

        Raises ConnectionRefusedError if no process listens on `host` and `port`.
        """
        loop, client = self.loop, self.loop.current_node()
        while True:
            await asyncio.sleep(self.delay_us() / 1e6)
            found = self._listeners.get((host, port))
            name = host if found is None else found[0].name
            if self.is_blocked(client.name, name) or self.is_blocked(name, client.name):
                await asyncio.sleep(_CONNECT_RETRY_US / 1e6)
                continue
            if found is None or found[0].is_dead:
                if name in self.powered_off:
                    await asyncio.sleep(_CONNECT_RETRY_US / 1e6)
                    continue
                raise ConnectionRefusedError(f"the connection to {host}:{port} was refused")
            break
        node, server_factory = found
        client_end = _SimulatedTransport(self, client, (client.name, 1))
        server_end = _SimulatedTransport(self, node, (host, port))
        client_end.peer, server_end.peer = server_end, client_end
        self._connections |= {client_end: None, server_end: None}
        protocol = factory()
        client_end.protocol = protocol

        def accept() -> None:
            if not server_end.is_closed:
                server_end.protocol = server_factory()
                server_end.protocol.connection_made(server_end)
                server_end.deliver_received()

        loop.call_after_us(self.delay_us(), node, accept)
        protocol.connection_made(client_end)
        return client_end, protocol

    def on_process_exit(self, node: SimulatedNode, *, silently: bool = False) -> None:
        """Close a dead process's listeners and connections.

        With `silently`, as in a power failure, the peers are not notified.
        """
        for key in [key for key, found in self._listeners.items() if found[0] is node]:
            del self._listeners[key]
        # `_connections` also contains closed connections with unsent data.
        for end in [end for end in self._connections if end.node is node]:
            end.on_process_exit(silently=silently)

    def remove_connection(self, end: _SimulatedTransport) -> None:
        self._connections.pop(end, None)


class _SimulatedTransport(asyncio.Transport):
    """The asyncio transport at one end of a connection."""

    def __init__(self, network: SimulatedNetwork, node: SimulatedNode, name: tuple[str, int]) -> None:
        super().__init__()
        self.network = network
        self.node = node
        self.name = name
        self.protocol: Any = None
        self.peer: _SimulatedTransport
        self.is_closed = False
        self._outgoing: deque[bytes | None] = deque()  # None marks the end of the stream
        self._outgoing_bytes = 0
        self._received: deque[bytes | None] = deque()
        self._busy_until_us = 0
        self._blocked_since_us: int | None = None
        self._stalled_until_us = 0
        self._is_closing = False
        self._is_reading = True
        self._is_write_paused = False

    # -- asyncio.Transport -------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.is_closed or self._is_closing or self.node.is_dead or not len(data):
            return
        self._outgoing.append(bytes(data))
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes > _WRITE_HIGH_BYTES and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()
        self.send_pending()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the simulation uses fixed limits."""

    def close(self) -> None:
        if not self._is_closing and not self.is_closed:
            self._is_closing = True
            self._outgoing.append(None)
            self.send_pending()
            self.network.loop.call_after_us(0, self.node, self._connection_lost, None)

    def abort(self) -> None:
        if self.is_closed:
            return
        self._end_stream()
        self._is_closing = True
        self.network.loop.call_after_us(0, self.node, self._connection_lost, None)

    def is_closing(self) -> bool:
        return self._is_closing or self.is_closed

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.network.loop.call_after_us(0, self.node, self.deliver_received)

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

    def send_pending(self) -> None:
        """Send queued data, unless the link is blocked or the connection is stalled."""
        network, loop = self.network, self.network.loop
        while self._outgoing:
            if network.is_blocked(self.node.name, self.peer.node.name):
                self._blocked_since_us = self._blocked_since_us or loop.now_us
                return
            if loop.now_us < self._stalled_until_us:
                return
            chunk = self._outgoing.popleft()
            self._busy_until_us = max(
                self._busy_until_us + 1, loop.now_us + network.delay_us(self.node.name, self.peer.node.name)
            )
            loop.call_after_us(self._busy_until_us - loop.now_us, self.peer.node, self.peer.receive, chunk)
        if self.is_closed:
            network.remove_connection(self)

    def resume_after_heal(self) -> None:
        """Resume sending after the link healed and after a random delay.

        Like TCP's backoff, the delay grows with the length of the outage.
        """
        since_us, self._blocked_since_us = self._blocked_since_us, None
        if since_us is not None:
            loop = self.network.loop
            self.stall(int(loop.rng.random() * min(loop.now_us - since_us, _RETRANSMIT_BACKOFF_US_MAX)))

    def stall(self, for_us: int) -> None:
        """Send no data for `for_us` microseconds."""
        loop = self.network.loop
        self._stalled_until_us = loop.now_us + for_us
        loop.call_after_us(for_us, loop.harness, self.send_pending)

    @property
    def has_unsent_data(self) -> bool:
        """Whether data is queued. As in a real kernel, queued data is sent even after the connection is closed."""
        return bool(self._outgoing)

    def receive(self, chunk: bytes | None) -> None:
        """Receive a chunk from the peer (None = the peer has closed its end)."""
        sender = self.peer
        if chunk is not None:
            sender.on_delivered(len(chunk))
        if self.is_closed:
            return
        self.network.record_arrival(self, chunk)
        self._received.append(chunk)
        self.deliver_received()

    def on_delivered(self, size: int) -> None:
        """Subtract delivered bytes from the write buffer, and resume writing when the buffer is small enough."""
        self._outgoing_bytes -= size
        if self._is_write_paused and self._outgoing_bytes <= _WRITE_HIGH_BYTES // 4 and not self.node.is_dead:
            self._is_write_paused = False
            self.network.loop.call_after_us(0, self.node, self._resume_writing)

    def _resume_writing(self) -> None:
        if not self.is_closed:
            self.protocol.resume_writing()

    def deliver_received(self) -> None:
        """Pass received data to the protocol."""
        while self._received and self._is_reading and not self.is_closed and self.protocol is not None:
            chunk = self._received.popleft()
            if chunk is None:
                self.protocol.eof_received()
                self.close()
                return
            self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        protocol = self.protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(chunk)
            return
        view = memoryview(chunk)
        while len(view) and not self.is_closed:
            buffer = memoryview(cast(Any, protocol.get_buffer(len(view))))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]
            if not self._is_reading and len(view):
                self._received.appendleft(bytes(view))
                return

    # -- closing -----------------------------------------------------------------------------------------------------

    def on_process_exit(self, *, silently: bool) -> None:
        """Close this end of the connection after its process exited.

        With `silently`, queued data is dropped and the peer is not notified.
        """
        if silently:
            self._outgoing.clear()
        elif not self.is_closed:
            self._end_stream()
        self._mark_closed()

    def reset(self) -> None:
        """Reset the connection at both ends."""
        for end in (self, self.peer):
            end._outgoing.clear()
            self.network._reset_later(end)

    def _end_stream(self) -> None:
        """Notify the peer that this end of the connection is closed.

        If data is queued, the peer receives the end of the stream after this data. If no data is queued, the peer's end
        of the connection is reset. Over a blocked link, this reset happens only after the link heals.
        """
        network, peer = self.network, self.peer
        if self._outgoing:
            if not self._is_closing:
                self._outgoing.append(None)
        elif not peer.is_closed and not network.is_blocked(self.node.name, peer.node.name):
            network._reset_later(peer)

    def _mark_closed(self) -> None:
        self.is_closed = True
        if not self._outgoing:
            self.network.remove_connection(self)

    def _connection_lost(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self._mark_closed()
        if self.protocol is not None:
            self.protocol.connection_lost(error)


class SimulatedSocketServer:
    """Replaces `server.network.socket_server.SocketServer` in a simulated node."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self.listeners: list[Listener] = []

    def bind(self, listener: Listener) -> Listener:
        """Reserve the listener's port. Connections are accepted only after `serve`."""
        from dataclasses import replace

        port = listener.port
        if port == 0:
            self._network._next_port += 1
            port = self._network._next_port
        bound = replace(listener, port=port)
        self.listeners.append(bound)
        return bound

    async def serve(self, new_connection: Callable[[str], Any], listeners: Sequence[Listener]) -> None:
        """Start accepting connections on the bound `listeners`."""
        names = {item.name for item in listeners}
        for item in self.listeners:
            if item.name not in names:
                continue
            self._network.listen(item.host, item.port, lambda name=item.name: new_connection(name))  # type: ignore[misc]

    def close(self) -> None:
        """Stop accepting connections."""
        for item in self.listeners:
            self._network.stop_listening(item.host, item.port)
