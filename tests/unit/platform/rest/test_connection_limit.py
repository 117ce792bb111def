"""Tests that idle connections do not prevent requests to the REST server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.herder.base import BaseHerder
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


async def get(port: int, path: str = "/connectors") -> bytes:
    """Send a GET request for `path` and return the first line of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(reader.readline(), 30)
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


HALF_HEAD = b"GET /connectors HT"
HALF_BODY = b"PUT /connectors/orders/config HTTP/1.1\r\nHost: worker\r\nContent-Length: 1000\r\n\r\n{"


async def respond_and_send(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request and read the response. Then send `sent`, the beginning of another request, on this connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /connectors HTTP/1.1\r\nHost: worker\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert await reader.readexactly(2) == b"[]"
    writer.write(sent)
    return reader, writer


async def send_requests(writer: asyncio.StreamWriter, request: bytes) -> None:
    """Send `request` many times without reading the responses, until the server closes the connection.

    The responses do not fit into the connection's buffers.
    """
    writer.write(request * 1000)
    while True:
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(request)


@pytest.mark.parametrize("sent", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
async def test_new_connection_replaces_an_earlier_connection_whose_second_request_is_incomplete(
    port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "CONNECTIONS_MAX", 5)
    idle = [await respond_and_send(port, sent) for _ in range(8)]
    for _ in range(3):
        assert await get(port) == b"HTTP/1.1 200 OK\r\n"
    for _, writer in idle:
        writer.close()


@pytest.mark.parametrize("sent", [b"", HALF_HEAD, HALF_BODY], ids=["nothing", "head", "body"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "later request"])
async def test_connection_with_an_incomplete_request_is_closed_after_a_timeout(
    port: int, sent: bytes, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "IDLE_TIMEOUT_S", 0.1)
    if is_first:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
    else:
        reader, writer = await respond_and_send(port, sent)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_connection_whose_client_does_not_read_responses_is_closed_after_a_timeout(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "IDLE_TIMEOUT_S", 0.3)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_requests(writer, b"GET /openapi.json HTTP/1.1\r\nHost: worker\r\n\r\n"), 30)
    writer.close()


async def test_connection_with_a_slow_body_is_not_closed_while_parts_arrive(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "IDLE_TIMEOUT_S", 2.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PATCH /connectors/orders/config HTTP/1.1\r\nHost: worker\r\nContent-Length: 10\r\n\r\n")
    for byte in b'{"a":  "b"':
        writer.write(bytes([byte]))
        await asyncio.sleep(0.3)
    assert await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 400 Bad Request\r\n"
    writer.close()


async def test_connection_is_not_closed_while_its_request_is_executed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "IDLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(BaseHerder, "wait_for_types", lambda _: asyncio.sleep(0.5))
    assert await get(port, "/connectors/orders") == b"HTTP/1.1 404 Not Found\r\n"
