"""Tests that a client connection detects a close by the broker before the event loop reads the end of the stream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from headrace_broker.client.connection import BrokerConnection


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connection_closed_by_the_broker_is_detected_before_the_event_loop_reads_the_end_of_the_stream(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = BrokerConnection("broker", "test", 1_000, None)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
        assert not connection.is_closed_by_peer()
        theirs.send(b"\x00")
        assert not connection.is_closed_by_peer()  # the broker has sent data but has not closed
        theirs.close()
        assert connection.is_closed_by_peer()
        assert connection.is_open
        connection.close()
        await connection.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())
