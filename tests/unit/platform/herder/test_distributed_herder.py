"""Tests of a distributed herder while the worker starts, and while no broker or no leader responds."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from headrace.herder import broker_wait, distributed, rest_client
from headrace.herder.assignment import Assignment
from headrace.herder.distributed import DistributedHerder
from headrace.herder.errors import ForwardError, HerderError
from headrace.herder.group_core import GroupCore
from headrace.herder.group_protocol import Version
from headrace.herder.stages import track
from headrace.rest import responses
from headrace.rest.server import RestServer
from headrace.runtime.spec import InstanceId
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores import kafka_config_store
from headrace.stores.config_store import ConfigSnapshot, ConnectorState, PutTargetState, RequestRestart, TargetState
from headrace.stores.topic_log import TopicLog
from support.herder import SlowWorker
from support.ports import free_port
from support.virtual_time import in_virtual_time

pytestmark = pytest.mark.anyio

CONFIG = WorkerConfig.distributed({
    "key.converter": "K", "value.converter": "V", "group.id": "g", "config.storage.topic": "c",
    "offset.storage.topic": "o", "status.storage.topic": "s",
})  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_herder() -> DistributedHerder:
    return DistributedHerder(CONFIG, "worker:1", "http://worker:1/", SlowWorker().with_events)  # type: ignore[arg-type]


async def test_failure_to_store_a_log_level_in_the_config_topic_is_logged_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait_forever(_log: TopicLog) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(TopicLog, "read_to_end", wait_forever)
    monkeypatch.setattr(kafka_config_store, "WRITE_TIMEOUT_S", 0.01)
    herder = make_herder()
    with pytest.raises(HerderError, match="Failed to write to config topic"):
        await herder.set_group_log_level("headrace", "INFO")
    text = "writing the log level of headrace to the config topic failed: no response within 0.01 s"
    assert text in caplog.text


async def test_first_refused_connection_of_a_starting_worker_is_logged_immediately_with_the_address_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logged = asyncio.Event()

    def notify(record: logging.LogRecord) -> bool:
        logged.set()
        return True

    monkeypatch.setattr(broker_wait.log, "filters", [notify])
    address = f"127.0.0.1:{free_port()}"
    config = WorkerConfig.distributed({**CONFIG.properties, "bootstrap.servers": address})
    herder = DistributedHerder(config, "worker:1", "http://worker:1/", SlowWorker().with_events)  # type: ignore[arg-type]
    start = asyncio.ensure_future(herder.start())
    try:
        async with asyncio.timeout(distributed.CONNECT_TIMEOUT_S / 2):
            await logged.wait()
    finally:
        start.cancel()
    (line,) = caplog.messages
    assert re.search(rf"no broker responds.*{address}.*(Connection refused|Connect call failed).*\)", line), line
    assert (herder.health().broker_error or "none") in line


async def test_worker_logs_only_once_that_no_broker_responds_although_it_repeats_its_attempts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(distributed, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(broker_wait, "RETRY_S", 0.001)
    config = WorkerConfig.distributed({**CONFIG.properties, "bootstrap.servers": f"127.0.0.1:{free_port()}"})
    herder = DistributedHerder(config, "worker:1", "http://worker:1/", SlowWorker().with_events)  # type: ignore[arg-type]
    attempts, repeated = 0, asyncio.Event()
    ensure = herder._ensure_internal_topics

    async def count_attempts() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            repeated.set()
        await ensure()

    monkeypatch.setattr(herder, "_ensure_internal_topics", count_attempts)
    start = asyncio.ensure_future(herder.start())
    async with asyncio.timeout(30):
        await repeated.wait()
    start.cancel()
    assert len([text for text in caplog.messages if "no broker responds" in text]) == 1


@pytest.fixture
def herder() -> DistributedHerder:
    return make_herder()


@pytest.fixture
async def client(herder: DistributedHerder) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(RestServer(CONFIG).application(herder))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        yield client


REQUESTS = [
    ("GET", "/connectors"), ("GET", "/connectors?expand=status"), ("GET", "/connectors/c"),
    ("GET", "/connectors/c/status"), ("PUT", "/connectors/c/pause"), ("PUT", "/admin/loggers/root?scope=cluster"),
]  # fmt: skip


@in_virtual_time
async def test_requests_that_need_the_config_topic_wait_until_the_worker_has_joined_its_group(
    herder: DistributedHerder, client: httpx.AsyncClient
) -> None:
    waiting = [asyncio.ensure_future(client.request(*each, json={"level": "INFO"})) for each in REQUESTS]
    await asyncio.wait(waiting, timeout=0.1)
    herder._has_read_topics.set()
    await asyncio.wait(waiting, timeout=0.1)
    assert not any(each.done() for each in waiting)
    herder._has_joined.set()
    assert [(await each).json() for each in waiting[:3]] == [
        [], {}, {"error_code": 404, "message": "Connector c not found"},
    ]  # fmt: skip
    for each in waiting:
        each.cancel()


@in_virtual_time
async def test_request_to_a_worker_that_stops_during_its_startup_fails_because_of_the_shutdown(
    herder: DistributedHerder, client: httpx.AsyncClient
) -> None:
    waiting = [asyncio.ensure_future(client.request(*each, json={"level": "INFO"})) for each in REQUESTS]
    await asyncio.wait(waiting, timeout=0.1)
    herder._stopping.set()
    assert {(await each).json()["message"] for each in waiting} == {"Worker is shutting down"}


async def test_error_for_a_request_timeout_during_startup_contains_the_stage_of_the_startup(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "REQUEST_TIMEOUT_S", 0.01)
    tasks = asyncio.all_tasks()
    response = await client.get("/connectors")
    assert response.status_code == 500
    assert response.json()["message"].startswith(
        "Request timed out. The worker is currently reading to the end of internal topics, which began at "
    )
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == tasks, "a GET request that has timed out does not wait any longer"


async def test_health_response_reports_the_brokers_as_unavailable_until_a_broker_has_responded(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["brokers"] == {"status": "unavailable", "message": "no broker has responded yet"}


async def test_request_to_store_task_configurations_fails_when_a_rebalance_replaces_a_leader_that_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_client, "REPLACED_GRACE_S", 0.1)
    herder = make_herder()
    monkeypatch.setattr(herder, "_group", StableGroup())
    group = herder._group_core
    group.version = Version.COMPATIBLE  # without signatures
    with socket.create_server(("127.0.0.1", 0)) as suspended:  # it accepts connections and never responds
        group.leader_url = f"http://127.0.0.1:{suspended.getsockname()[1]}/"
        submission = asyncio.ensure_future(herder._submission._submit_once("c", [{"a": "1"}]))
        connection, _ = await asyncio.to_thread(suspended.accept)
        with connection:
            group.leader_url = "http://127.0.0.1:1/"
            herder._rebalanced.set()
            with pytest.raises(HerderError, match="was replaced before it responded"):
                await asyncio.wait_for(submission, 30)
            received = await asyncio.to_thread(read_to_end, connection)
    assert b"/connectors/c/tasks?forward=false" in received, "the former leader must not forward it to the next leader"


async def test_connector_fails_if_the_leader_responds_that_its_task_configurations_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def send(*_: Any, **__: Any) -> rest_client.RestResponse:
        return rest_client.RestResponse(413, {}, b'{"message": "a record is larger than 1 MiB"}')

    monkeypatch.setattr(rest_client, "send", send)
    herder = make_herder()
    monkeypatch.setattr(herder, "_group", StableGroup())
    group, rejected = herder._group_core, list[str]()
    monkeypatch.setattr(GroupCore, "assignment", Assignment(frozenset({"c"}), frozenset()))
    group.version, group.leader_url = Version.COMPATIBLE, "http://leader/"
    herder._submission._reject = lambda name, _, error: rejected.append(f"{name}: {error}")
    await asyncio.wait_for(herder._submission._submit_until_stored("c", [{"a": "1"}]), 30)
    assert rejected == ["c: the leader http://leader/ responded 413: a record is larger than 1 MiB"]


async def test_error_for_a_request_to_the_wrong_worker_contains_the_connector_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the request calls no code of the connector, the attribute `connector_class` of the error is None."""
    herder = make_herder()
    monkeypatch.setattr(herder, "_group", StableGroup())
    state = ConnectorState({"connector.class": "C"}, TargetState.STOPPED, 0)
    herder._instances.core.on_snapshot(ConfigSnapshot(0, {"c": state}))
    for change, expected in (
        (herder.put("new", {"connector.class": "New"}), "New"),
        (herder.patch("c", {"a": "1"}), "C"),
        (herder.patch("c", {"connector.class": "New"}), "New"),
        (herder.reset_offsets("c"), "C"),
        (herder.set_target("c", TargetState.PAUSED), None),
    ):
        with pytest.raises(ForwardError) as caught:
            await change
        assert caught.value.connector_class == expected


def make_herder_with_running_connector(monkeypatch: pytest.MonkeyPatch) -> tuple[DistributedHerder, HangingWorker]:
    worker = HangingWorker()
    herder = DistributedHerder(CONFIG, "worker:1", "http://worker:1/", worker.with_events)  # type: ignore[arg-type]
    monkeypatch.setattr(herder, "_group", StableGroup())
    monkeypatch.setattr(GroupCore, "assignment", Assignment(frozenset({"c"}), frozenset()))
    monkeypatch.setattr(herder._statuses, "_send", lambda record: None)
    monkeypatch.setattr(herder._instances, "_store_task_configs", lambda name, configs: asyncio.sleep(0))
    herder._group_core.is_leader = herder._group_core.was_leader = True
    state = ConnectorState({"connector.class": "C"}, TargetState.STARTED, 0)
    herder._instances.carry_out(herder._instances.core.on_snapshot(ConfigSnapshot(0, {"c": state})))
    return herder, worker


async def test_stopping_worker_completes_a_change_of_a_connector_before_it_leaves_the_group_and_closes_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herder, _ = make_herder_with_running_connector(monkeypatch)
    await herder._instances.settled("c")
    reading, may_read, order = asyncio.Event(), asyncio.Event(), list[str]()

    async def read_to_end(_log: TopicLog) -> None:
        reading.set()
        await may_read.wait()

    async def append(_log: TopicLog, _records: Any) -> None:
        order.append("written")

    async def leave() -> bool:
        order.append("left")
        return True

    async def close() -> None:
        order.append("closed")

    monkeypatch.setattr(TopicLog, "read_to_end", read_to_end)
    monkeypatch.setattr(TopicLog, "append", append)
    monkeypatch.setattr(StableGroup, "stop", staticmethod(leave), raising=False)
    monkeypatch.setattr(herder._logs, "stop", close)
    for part in (herder._instances, herder._statuses):
        monkeypatch.setattr(part, "stop", lambda: asyncio.sleep(0))
    monkeypatch.setattr(herder._instances.worker, "close", lambda: asyncio.sleep(0), raising=False)
    change = asyncio.ensure_future(herder._configs.append(RequestRestart("c", False, False)))
    await reading.wait()
    stop = asyncio.ensure_future(herder.stop())
    await asyncio.wait([stop], timeout=0.05)
    may_read.set()
    await asyncio.gather(change, stop)
    assert order == ["written", "left", "closed"]


async def test_restart_request_to_a_distributed_worker_fails_if_the_connector_fails_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herder, worker = make_herder_with_running_connector(monkeypatch)
    await herder._instances.settled("c")
    worker.fails_to_start = True
    with pytest.raises(HerderError, match=r"^Failed to start connector: c: the trace$"):
        await herder.restart("c", include_tasks=False, only_failed=False)
    worker.fails_to_start = False
    await herder.restart("c", include_tasks=False, only_failed=False)
    assert herder.status("c").connector.state == "RUNNING"


async def test_stage_of_a_restart_request_changes_after_the_connector_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stage changes from "stopping restarted connector c" to "starting connector c"."""
    herder, worker = make_herder_with_running_connector(monkeypatch)
    await herder._instances.settled("c")
    worker.may_stop.clear()
    worker.may_start.clear()
    tracker = track()
    request = asyncio.ensure_future(herder.restart("c", include_tasks=False, only_failed=False))
    await asyncio.wait_for(worker.stopping.wait(), 30)
    assert tracker.last is not None
    assert tracker.last.description == "stopping restarted connector c"
    worker.starting.clear()
    worker.may_stop.set()
    await asyncio.wait_for(worker.starting.wait(), 30)
    await asyncio.sleep(0.01)  # the request continues after the stop
    assert tracker.last.description == "starting connector c"
    worker.may_start.set()
    await asyncio.wait_for(request, 30)


async def test_restart_request_with_tasks_does_not_wait_for_a_connector_whose_start_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herder, worker = make_herder_with_running_connector(monkeypatch)
    await herder._instances.settled("c")
    written = []

    async def append(change: Any) -> int:
        written.append(change)
        worker.may_start.clear()
        herder._on_config_change(change, herder._snapshot)
        return 0

    monkeypatch.setattr(herder._configs, "append", append)
    for _ in range(2):  # the start that the first request has caused hangs during the second request
        status = await asyncio.wait_for(herder.restart("c", include_tasks=True, only_failed=False), 30)
        assert status.connector.state == "RESTARTING"
    assert written == [RequestRestart("c", True, False)] * 2
    worker.may_start.set()
    await herder._instances.settled("c")


class HangingWorker(SlowWorker):
    """A fake worker. Its connectors hang while they start and stop, unless `may_start` and `may_stop` are set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start, self.may_stop = asyncio.Event(), asyncio.Event()
        self.may_start.set()
        self.may_stop.set()
        self.starting, self.stopping = asyncio.Event(), asyncio.Event()

    async def start_connector(self, id_: InstanceId, config: Mapping[str, str]) -> str:
        self.starting.set()
        await self.may_start.wait()
        return await super().start_connector(id_, config)

    async def stop(self, id_: InstanceId) -> None:
        self.stopping.set()
        await self.may_stop.wait()
        await super().stop(id_)


class StableGroup:
    """A group without a rebalance in progress."""

    is_stable = True
    has_session = True

    def on_snapshot(self, snapshot: ConfigSnapshot) -> None:
        """Do nothing."""

    async def wait_until_stable(self) -> None:
        """Return immediately."""


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while block := connection.recv(4096):
        received += block
    return received


@pytest.mark.parametrize(
    ("has_session", "was_leader", "is_permitted"), [(True, True, True), (False, True, False), (True, False, False)]
)
async def test_only_a_leader_with_a_valid_session_writes_changes_to_the_config_topic(
    has_session: bool, was_leader: bool, is_permitted: bool
) -> None:
    """A worker that begins a request as the leader may lose its session or the leadership before it writes."""
    herder = make_herder()
    written = []

    async def append(change: Any) -> int:
        written.append(change)
        return 0

    herder._configs.append = append  # type: ignore[method-assign]
    herder._group = SimpleNamespace(has_session=has_session)  # type: ignore[assignment]
    herder._group_core.was_leader = was_leader
    change = PutTargetState("c", TargetState.PAUSED)
    if is_permitted:
        await herder._append(change, "writing")
    else:
        with pytest.raises(HerderError, match="no longer the leader"):
            await herder._append(change, "writing")
    assert written == ([change] if is_permitted else [])
