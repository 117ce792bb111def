"""The socket server of a node. It binds the listeners before the node registers, and accepts connections afterwards.

If the configured port is 0, the operating system chooses the port, and the node registers the chosen port. The host
`localhost` binds the IPv4 and the IPv6 loopback address if both exist, because clients may resolve the name to either
address. An empty host, 0.0.0.0 and [::] bind all interfaces, over IPv4 and IPv6, as in Kafka.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.network.connection import Connection
from headrace_broker.server.network.endpoints import Listener, is_wildcard

_BIND_ATTEMPTS = 20
_KAFKA_DEFAULT_BUFFER_BYTES = 102_400
"""Kafka's default, which its sample server.properties sets explicitly. Setting it on a socket would disable the
kernel's buffer auto-tuning and cost three quarters of the throughput, so this value means "not configured"."""


class SocketServer:
    """The bound sockets of a node and, after `serve`, the asyncio servers that accept connections on them."""

    def __init__(self, backlog: int, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
        self._backlog = backlog
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self._sockets: list[tuple[Listener, socket.socket]] = []
        self._servers: list[asyncio.Server] = []
        self.listeners: list[Listener] = []

    def bind(self, listener: Listener) -> Listener:
        """Bind one listener and return the listener with its actual port. Raises StartError."""
        addresses = _addresses(listener)
        for attempt in range(_BIND_ATTEMPTS):
            try:
                sockets = self._bind_all(listener, addresses)
            except OSError as error:
                # If the configured port is 0, try another port, because a free IPv4 port may be in use over IPv6.
                if listener.port == 0 and error.errno == errno.EADDRINUSE and attempt + 1 < _BIND_ATTEMPTS:
                    continue
                raise StartError(_bind_error(listener, error)) from None
            break
        bound = replace(listener, port=sockets[0].getsockname()[1])
        self._sockets += [(bound, item) for item in sockets]
        self.listeners.append(bound)
        return bound

    def _bind_all(self, listener: Listener, addresses: list[tuple[int, str]]) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        port = listener.port
        try:
            for family, host in addresses:
                item = self._socket(family)
                sockets.append(item)
                item.bind((host, port))
                port = item.getsockname()[1]
        except OSError:
            for item in sockets:
                item.close()
            raise
        return sockets

    def _socket(self, family: int) -> socket.socket:
        item = socket.socket(family, socket.SOCK_STREAM)
        item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if self._receive_buffer_bytes not in (-1, _KAFKA_DEFAULT_BUFFER_BYTES):
            item.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        if self._send_buffer_bytes not in (-1, _KAFKA_DEFAULT_BUFFER_BYTES):
            item.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        item.setblocking(False)
        return item

    async def serve(self, new_connection: Callable[[str], Connection], listeners: Sequence[Listener]) -> None:
        """Accept connections on these listeners, which must be bound. Raises StartError."""
        loop = asyncio.get_running_loop()
        names = {listener.name for listener in listeners}
        for listener, item in self._sockets:
            name = listener.name
            if name not in names:
                continue
            try:
                # Listen here: if another process has started to listen on this address since the bind, uvloop raises no
                # error.
                item.listen(self._backlog)
            except OSError as error:
                raise StartError(_bind_error(listener, error)) from None
            self._servers.append(
                await loop.create_server(lambda name=name: new_connection(name), sock=item, backlog=self._backlog)  # type: ignore[misc]
            )

    def close(self) -> None:
        """Close all listeners; established connections stay open."""
        for server in self._servers:
            server.close()
        for _, item in self._sockets:
            item.close()


def _addresses(listener: Listener) -> list[tuple[int, str]]:
    """Return the (family, address) pairs to bind, IPv4 first."""
    if is_wildcard(listener.host) or listener.host == "localhost":
        ipv4, ipv6 = ("0.0.0.0", "::") if is_wildcard(listener.host) else ("127.0.0.1", "::1")
        addresses: list[tuple[int, str]] = [(socket.AF_INET, ipv4), (socket.AF_INET6, ipv6)]
        return addresses if _has_ipv6() else addresses[:1]
    try:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
    except OSError:
        raise StartError(f"listener {listener}: host {listener.host} cannot be resolved") from None
    return list(dict.fromkeys((int(item[0]), str(item[4][0])) for item in found))


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _bind_error(listener: Listener, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {listener.port} of {listener} is in use: stop the process that uses it, or set another port in"
            " listeners"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"listener {listener}: {listener.host} is not an address of this machine: correct the host in listeners"
    if error.errno == errno.EACCES:
        return f"listener {listener}: this user may not bind port {listener.port}; set a port above 1023 in listeners"
    return f"listener {listener} cannot be bound: {error.strerror or error}"
