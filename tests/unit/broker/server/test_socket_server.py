"""Tests that SocketServer fails if another process listens on the port between `bind` and `serve`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.socket_server import SocketServer


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
