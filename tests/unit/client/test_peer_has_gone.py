"""A connection that its peer has closed is known before the loop gets round to reading that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from headrace_broker.client.connection import Connection


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_close_is_seen_at_once(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection("broker", "test", 1_000, None)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
        assert not connection.peer_has_gone()
        theirs.send(b"\x00")
        assert not connection.peer_has_gone()  # something to read is no farewell
        theirs.close()
        assert connection.peer_has_gone()
        assert connection.is_open
        connection.close()
        await connection.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())
