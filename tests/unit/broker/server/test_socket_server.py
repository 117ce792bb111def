"""Tests of the addresses that SocketServer binds, and of ports that another process uses."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest
import uvloop

from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.socket_server import SocketServer
from support.ports import has_ipv6


def test_socket_server_cannot_listen_on_a_port_if_another_process_listens_on_the_port() -> None:
    """Two nodes can bind the same port before they listen, for example while both nodes wait for the quorum."""

    async def serve_twice() -> None:
        first, second = SocketServer(50, -1, -1), SocketServer(50, -1, -1)
        bound = first.bind(Listener("PLAINTEXT", "127.0.0.1", 0))
        second.bind(bound)
        no_connections: Any = None
        try:
            await first.serve(no_connections, [bound])
            with pytest.raises(StartError, match=rf"port {bound.port} of PLAINTEXT.* is in use"):
                await second.serve(no_connections, [bound])
        finally:
            first.close()
            second.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_twice())


def connected(host: str) -> list[str]:
    """Serve a listener with this host, and return the loopback addresses to which clients can connect."""

    async def serve() -> list[str]:
        server = SocketServer(50, -1, -1)
        bound = server.bind(Listener("PLAINTEXT", host, 0))
        new_connection: Any = lambda name: asyncio.Protocol()  # noqa: E731
        try:
            await server.serve(new_connection, [bound])
            return [address for address in ("127.0.0.1", "::1") if await can_connect(address, bound.port)]
        finally:
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


async def can_connect(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_listener_for_all_interfaces_accepts_connections_over_ipv4_and_ipv6(host: str) -> None:
    assert connected(host) == ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_listener_for_all_interfaces_accepts_ipv4_connections_on_a_machine_without_ipv6(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    real_socket = socket.socket

    def new_socket(family: int = socket.AF_INET, *arguments: Any, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real_socket(family, *arguments, **more)

    monkeypatch.setattr("headrace_broker.server.network.socket_server.socket.socket", new_socket)
    assert connected(host) == ["127.0.0.1"]
