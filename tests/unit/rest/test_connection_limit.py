"""Tests that idle connections do not prevent requests to the REST server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.rest import connection_limit
from headrace.rest.server import RestServer
from headrace.runtime.worker_config import WorkerConfig
from support.herder import make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """Yield the port of a running REST server."""
    herder, _ = await make_herder(tmp_path)
    config = WorkerConfig.standalone({**herder.config.properties, "listeners": "http://127.0.0.1:0"})
    server = RestServer(config)
    _, _, number = server.bind()
    await server.start(herder)
    yield number
    await server.stop(time.monotonic())


async def get(port: int) -> bytes:
    """Send a request and return the first line of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /connectors HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.readline(), 5)
    finally:
        writer.close()


async def test_new_connection_replaces_the_oldest_idle_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "CONNECTIONS_MAX", 5)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _ in range(3):
        assert await get(port) == b"HTTP/1.1 200 OK\r\n"
    closed = [reader.at_eof() for reader, _ in idle]
    assert closed == sorted(closed, reverse=True), "the oldest ones are closed"
    assert sum(closed) >= 15
    for _, writer in idle:
        writer.close()


async def test_connection_without_a_request_is_closed_after_a_timeout(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "REQUEST_HEAD_TIMEOUT_S", 0.1)
    for sent in (b"", b"GET /connectors HT"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
