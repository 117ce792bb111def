"""Listening: a port that another process took between binding it and serving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.listening import Listening


def test_a_port_that_another_serves_by_now_is_no_success() -> None:
    """Both nodes can bind it while neither serves, as when they wait for their quorum at the same time."""

    async def serve_twice() -> None:
        first, second = Listening(50, -1, -1), Listening(50, -1, -1)
        bound = first.bind(Listener("PLAINTEXT", "127.0.0.1", 0))
        second.bind(bound)
        nobody: Any = None
        try:
            await first.serve(nobody, [bound])
            with pytest.raises(StartError, match=rf"port {bound.port} of PLAINTEXT.* is in use"):
                await second.serve(nobody, [bound])
        finally:
            first.close()
            second.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_twice())
