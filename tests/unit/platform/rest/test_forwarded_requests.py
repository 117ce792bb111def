"""Tests that a worker ignores a forwarded request if the connection was closed before the worker read the request.

A worker that was suspended may read a request long after the worker that forwarded it has closed the connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.herder.standalone import StandaloneHerder
from headrace.rest.server import RestServer
from headrace.runtime.worker_config import WorkerConfig
from support.herder import CONFIG, make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[int, StandaloneHerder]]:
    """Yield the port of a running REST server, and its herder."""
    herder, _ = await make_herder(tmp_path)
    rest = RestServer(WorkerConfig.standalone({**herder.config.properties, "listeners": "http://127.0.0.1:0"}))
    _, _, port = rest.bind()
    await rest.start(herder)
    yield port, herder
    await rest.stop(time.monotonic())


def send(port: int, name: str, query: str) -> socket.socket:
    """Send a PUT request for the configuration of connector `name`. `query` is the query string of the URL.

    The server's event loop does not run while the request is sent, as if the server were suspended.
    """
    body = json.dumps(CONFIG).encode()
    head = f"PUT /connectors/{name}/config{query} HTTP/1.1\r\nHost: worker\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + body)
    return connection


async def created(herder: StandaloneHerder, name: str) -> None:
    async with asyncio.timeout(30):
        while name not in herder.names():  # noqa: ASYNC110 - the herder has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("hop", ["true", "false"])
async def test_forwarded_request_is_not_executed_if_its_connection_was_closed_before_the_request_was_read(
    server: tuple[int, StandaloneHerder], hop: str
) -> None:
    port, herder = server
    send(port, "abandoned", f"?forward={hop}").close()
    with send(port, "awaited", f"?forward={hop}"):
        await created(herder, "awaited")
    for number in range(3):  # an erroneous execution of the first request has the time of several requests
        with send(port, f"later-{number}", ""):
            await created(herder, f"later-{number}")
    assert "abandoned" not in herder.names()


async def test_request_of_a_user_is_executed_even_if_the_user_has_closed_the_connection(
    server: tuple[int, StandaloneHerder],
) -> None:
    port, herder = server
    send(port, "sent", "").close()
    await created(herder, "sent")
