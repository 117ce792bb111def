"""Tests of the addresses that the REST server binds, and of its shutdown while a request is in progress."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from headrace.rest import server
from headrace.rest.server import RestServer
from headrace.runtime.worker_config import WorkerConfig
from support.herder import make_herder
from support.ports import free_port, has_ipv6

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Server:
    """A REST server with two listeners. Every request about a connector waits until `proceed` is set."""

    def __init__(self, directory: Path, graceful_ms: int) -> None:
        self._directory = directory
        self.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        self._rest = RestServer(
            WorkerConfig.standalone(
                {
                    "key.converter": "K",
                    "value.converter": "V",
                    "listeners": self.urls[0],
                    "admin.listeners": self.urls[1],
                    "task.shutdown.graceful.timeout.ms": str(graceful_ms),
                }
            )
        )
        self._waiting = asyncio.Event()
        self.proceed = asyncio.Event()

    async def start(self) -> None:
        herder, _ = await make_herder(self._directory)

        async def wait() -> None:
            self._waiting.set()
            await self.proceed.wait()

        herder.wait_for_types = wait  # type: ignore[method-assign]
        self._rest.bind()
        await self._rest.start(herder)

    async def stop(self) -> None:
        await self._rest.stop(time.monotonic())

    async def request(self) -> asyncio.Task[httpx.Response]:
        """Send a request and wait until it arrives at the endpoint. Return the task that receives its response."""

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(timeout=30) as client:
                return await client.get(f"{self.urls[0]}/connectors?expand=info")

        response = asyncio.create_task(send())
        await self._waiting.wait()
        return response


@pytest.fixture
async def started(tmp_path: Path) -> _Server:
    started = _Server(tmp_path, 0)
    await started.start()
    return started


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
async def test_listener_for_all_addresses_accepts_requests_over_ipv4_and_ipv6(tmp_path: Path, host: str) -> None:
    settings = {"key.converter": "K", "value.converter": "V", "listeners": f"http://{host}:0"}
    rest = RestServer(WorkerConfig.standalone(settings))
    herder, _ = await make_herder(tmp_path)
    _, _, port = rest.bind()
    await rest.start(herder)
    async with httpx.AsyncClient(timeout=30) as client:
        for address in ("127.0.0.1", "[::1]") if has_ipv6() else ("127.0.0.1",):
            assert (await client.get(f"http://{address}:{port}/")).status_code == 200
    await rest.stop(time.monotonic())


async def test_server_that_is_stopping_waits_for_a_pending_request(started: _Server) -> None:
    response = await started.request()
    stop = asyncio.create_task(started.stop())
    await asyncio.sleep(1.5)
    started.proceed.set()
    assert (await response).status_code == 200
    await stop


async def test_request_that_a_shutdown_interrupts_receives_an_error_response(
    started: _Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "STOP_MARGIN_S", 0.0)
    response = await started.request()
    await started.stop()
    received = await response
    assert received.status_code == 500
    assert received.json() == {"error_code": 500, "message": "Worker is shutting down"}
    assert "Traceback" not in caplog.text
