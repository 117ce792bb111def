"""Tests of a connector instance in its host: its requests to the worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.runtime import messages
from headrace.runtime.spec import ConnectorSpec, InstanceId
from headrace.runtime.worker_connector import WorkerConnector

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowChannel:
    """A channel to a worker that responds to a request when the test releases it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.release = asyncio.Semaphore(0)

    async def request(self, message: Any) -> None:
        self.requests.append(message)
        await self.release.acquire()


async def test_reconfiguration_requests_are_combined_while_the_worker_has_not_responded() -> None:
    channel, instance = SlowChannel(), InstanceId("c", None, 1)
    connector = WorkerConnector(channel, instance, ConnectorSpec(name="c", config={}, worker={}))  # type: ignore[arg-type]

    async def request(count: int) -> None:
        def call() -> None:
            for _ in range(count):
                connector.request_reconfiguration()

        await asyncio.to_thread(call)
        await asyncio.sleep(0)

    await request(1)
    assert channel.requests == [messages.ReconfigurationRequested(instance)]
    await request(1_000)
    assert len(channel.requests) == 1
    for _ in range(3):
        channel.release.release()
        await asyncio.sleep(0.01)
    assert len(channel.requests) == 2, "the worker may have generated configurations before the later requests"
    await request(1)
    assert len(channel.requests) == 3
