"""Tests of a connector instance in its host process, and of its requests to the worker."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import Any

import pytest

from headrace.api import Config, ConnectError, Password, SinkConnector, SourceTask, key
from headrace.metrics import logs
from headrace.runtime import messages, worker_connector
from headrace.runtime.spec import ConnectorSpec, InstanceId
from headrace.runtime.traces import message_of
from headrace.runtime.worker_connector import WorkerConnector

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowChannel:
    """A channel to a worker. Each request waits for its response until the test calls `release.release()`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.release = asyncio.Semaphore(0)

    async def request(self, message: Any) -> None:
        self.requests.append(message)
        await self.release.acquire()


class OwnBaseException(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [StopIteration("x"), asyncio.CancelledError("x"), CancelledError("x"), OwnBaseException("x")]
)
async def test_plugin_exceptions_that_a_future_cannot_return_are_raised_as_runtime_errors(error: BaseException) -> None:
    def fail() -> None:
        raise error

    connector = WorkerConnector(None, InstanceId("c", None, 1), ConnectorSpec(name="c", config={}, worker={}))  # type: ignore[arg-type]
    for call in (connector._call, worker_connector._in_thread):
        with pytest.raises(RuntimeError, match=f"the plug-in raised {type(error).__name__}: x") as caught:
            await asyncio.wait_for(call(fail), 30)
        assert caught.value.__cause__ is error


async def test_reconfiguration_requests_are_combined_until_the_worker_has_responded() -> None:
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


class _Waiting(SourceTask):
    @classmethod
    def warnings(cls, config: Config) -> list[str]:
        return ["The table has no index"]


async def test_warnings_of_a_task_class_without_a_connector_class_are_logged_once_when_the_connector_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {"name": "c", "connector.class": f"{__name__}:_Waiting", "tasks.max": "3"}
    connector = WorkerConnector(None, InstanceId("c", None, 1), ConnectorSpec(name="c", config=config, worker={}))  # type: ignore[arg-type]
    await connector.start()
    await connector.task_configs()
    await connector.stop()
    assert [record.getMessage() for record in caplog.records] == ["Connector c: The table has no index"]


class _StoreConfig(Config):
    user_info: Password = key("basic.auth.user.info")


class StoreConnector(SinkConnector[_StoreConfig]):
    def start(self, config: _StoreConfig) -> None:
        raise ConnectError(f"the store rejects {config.user_info.value}")


async def test_password_of_a_connector_is_masked_in_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())
    config = {"connector.class": f"{__name__}:StoreConnector", "basic.auth.user.info": "open-sesame"}
    spec = ConnectorSpec(name="c", config=config, worker={})
    connector = WorkerConnector(None, InstanceId("c", None, 1), spec)  # type: ignore[arg-type]
    with pytest.raises(ConnectError) as caught:
        await connector.start()
    assert message_of(caught.value) == f"the store rejects {logs.MASK}"
    await connector.stop()


class OffsetsConnector(SinkConnector[Config]):
    """Returns a consumer property of the context instead of a message for the user."""

    def alter_offsets(self, config: Config, offsets: Any) -> str:
        return self.offsets_context.client_properties["auto.offset.reset"]


@pytest.mark.parametrize(
    ("worker", "override", "reset"),
    [
        ({}, {}, "earliest"),
        ({"consumer.auto.offset.reset": "latest"}, {}, "latest"),
        ({"consumer.auto.offset.reset": "latest"}, {"consumer.override.auto.offset.reset": "earliest"}, "earliest"),
    ],
)
async def test_offsets_context_has_the_consumer_properties_of_worker_and_connector(
    worker: dict[str, str], override: dict[str, str], reset: str
) -> None:
    config = {"connector.class": f"{__name__}:OffsetsConnector", **override}
    spec = ConnectorSpec(name="c", config=config, worker={"bootstrap.servers": "127.0.0.1:1", **worker})
    assert await worker_connector.alter_offsets(spec, [], is_reset=True) == reset
