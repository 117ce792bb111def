"""Tests of the standalone herder: statuses, retries, offsets, and failed operations of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.herder import core
from headrace.herder.errors import AlreadyExistsError, BadRequestError, HerderError, NotFoundError
from headrace.herder.herder import PutResult
from headrace.runtime.channel import RemoteError
from headrace.runtime.spec import InstanceId
from headrace.stores.config_store import TargetState
from support.herder import CONFIG, SlowWorker, make_herder

pytestmark = pytest.mark.anyio

PARTITION, OFFSET = {"file": "a"}, {"position": 7}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def instance_of(worker: SlowWorker, name: str) -> InstanceId:
    (found,) = (id_ for id_ in worker.running if id_.name == name)
    return found


async def test_connector_status_contains_plugin_versions_and_the_worker_id(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    worker.events.state_changed(instance_of(worker, "c-1"), "RUNNING", None)
    status = herder.status("c")
    assert (status.connector.version, status.connector.worker_id) == ("1.2.3", "worker:1")
    assert [(task.state.value, task.version) for task in status.tasks.values()] == [
        ("UNASSIGNED", "1.2.3"),
        ("RUNNING", "1.2.3"),
    ]


async def test_creation_of_an_existing_connector_fails_and_does_not_change_the_connector(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    outcomes = await asyncio.gather(
        *(herder.put("c", CONFIG | {"n": str(n)}, replace=False) for n in range(2)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [PutResult, AlreadyExistsError]
    assert herder.connector_config("c")["n"] == "0"
    assert worker.running_names() == ["c", "c-0", "c-1"]


async def test_status_of_a_failed_task_has_state_failed_and_a_trace_until_the_task_is_restarted(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    worker.events.state_changed(instance_of(worker, "c-0"), "FAILED", "Traceback:\nValueError: bad")
    assert (herder.task_status("c", 0).state.value, herder.task_status("c", 0).trace) == (
        "FAILED",
        "Traceback:\nValueError: bad",
    )
    status = await herder.restart("c", include_tasks=True, only_failed=True)
    assert [task.state.value for task in status.tasks.values()] == ["RESTARTING", "UNASSIGNED"]
    assert herder.task_status("c", 0).state.value == "UNASSIGNED"
    assert worker.running_names() == ["c", "c-0", "c-1"]


async def test_tasks_start_after_several_failed_attempts_to_generate_their_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "RETRY_BACKOFF_MIN_MS", 1)
    herder, worker = await make_herder(tmp_path)
    failures = iter(range(3))
    generate = worker.task_configs
    generated = asyncio.Event()

    async def fail_at_first(id_: InstanceId) -> list[dict[str, str]]:
        if next(failures, None) is not None:
            raise RemoteError("ConnectError", "database is down", "trace")
        generated.set()
        return await generate(id_)

    monkeypatch.setattr(worker, "task_configs", fail_at_first)
    await herder.put("c", CONFIG)
    assert worker.running_names() == ["c"]
    await asyncio.wait_for(generated.wait(), 30)
    await herder.restart(
        "c", include_tasks=False, only_failed=True
    )  # this call waits until the connector's task configurations are applied
    assert worker.running_names() == ["c", "c-0", "c-1"]


async def test_unexpected_error_of_a_plugin_is_reported_and_logged_with_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of a KeyError contains only the key."""
    herder, worker = await make_herder(tmp_path)

    async def fail(*_: Any) -> Any:
        raise RemoteError("KeyError", "'orders'", "KeyError: 'orders'\nTraceback (most recent call last):\n  File x")

    monkeypatch.setattr(worker, "start_connector", fail)
    await herder.put("c", CONFIG)
    assert "Connector c: failed to start: KeyError: 'orders'" in caplog.messages[-1]
    monkeypatch.setattr(worker, "validate", fail)
    with pytest.raises(HerderError, match=r"^KeyError: 'orders'$"):
        await herder.validate("C", CONFIG)


async def test_restart_request_fails_if_the_connector_or_task_fails_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    start = worker.start_connector

    async def fail(*_: Any) -> str:
        raise RemoteError(
            "ValueError", "no", "ValueError: no\nTraceback (most recent call last):\n  File x\nValueError: no"
        )

    monkeypatch.setattr(worker, "start_connector", fail)
    monkeypatch.setattr(worker, "start_task", fail)
    with pytest.raises(HerderError, match=r"^Failed to start connector: c: ValueError: no$") as caught:
        await herder.restart("c", include_tasks=False, only_failed=False)
    assert caught.value.status == 500
    with pytest.raises(HerderError, match=r"^Failed to start task: c-1: ValueError: no$"):
        await herder.restart_task("c", 1)
    status = await herder.restart("c", include_tasks=True, only_failed=False)
    assert status.connector.state == "RESTARTING"
    monkeypatch.setattr(worker, "start_connector", start)
    await herder.restart("c", include_tasks=False, only_failed=False)
    assert herder.status("c").connector.state == "RUNNING"


async def test_connector_has_state_failed_if_the_worker_raises_an_error_while_it_starts_the_connector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder, worker = await make_herder(tmp_path)

    async def too_large(id_: InstanceId, config: Mapping[str, str]) -> str:
        raise ValueError("channel message exceeds the limit")

    monkeypatch.setattr(worker, "start_connector", too_large)
    await herder.put("c", CONFIG)
    assert herder.status("c").connector.state.value == "FAILED"
    assert "channel message exceeds the limit" in (herder.status("c").connector.trace or "")
    await herder.delete("c")
    with pytest.raises(NotFoundError):
        herder.status("c")


async def test_offsets_of_a_source_connector_can_be_changed_only_while_the_connector_is_stopped(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await worker.events.commit_offsets(instance_of(worker, "c-0"), [(PARTITION, OFFSET)])
    with pytest.raises(BadRequestError, match="must be in the STOPPED state"):
        await herder.alter_offsets("c", [(PARTITION, {"position": 0})])
    await herder.set_target("c", TargetState.STOPPED)
    assert await herder.alter_offsets("c", [(PARTITION, {"position": 0})])
    assert await herder.offsets("c") == [(PARTITION, {"position": 0})]
    assert await herder.reset_offsets("c")
    assert await herder.offsets("c") == []


async def test_stop_of_the_herder_ends_a_connector_creation_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder, worker = await make_herder(tmp_path)
    starting = asyncio.Event()

    async def hang(*_arguments: Any) -> str:
        starting.set()
        await asyncio.Event().wait()
        return ""

    async def nothing() -> None:
        return None

    monkeypatch.setattr(worker, "start_connector", hang)
    monkeypatch.setattr(worker, "stop_all", nothing, raising=False)
    monkeypatch.setattr(worker, "close", nothing, raising=False)
    creation = asyncio.ensure_future(herder.put("c", CONFIG))
    await asyncio.wait_for(starting.wait(), 30)
    await asyncio.wait_for(herder.stop(), 30)
    await asyncio.wait_for(creation, 30)


async def test_patched_configuration_has_the_key_order_of_kafka_connects_hash_map(tmp_path: Path) -> None:
    herder, _ = await make_herder(tmp_path)
    await herder.put("c", {"connector.class": "C", "tasks.max": "1", "file": "in", "topic": "t", "name": "c", "a": "b"})
    await herder.patch("c", {"batch.size": "7", "a": None})
    # The order in which Apache Kafka 4.3.1 writes these keys after a PATCH.
    assert list(herder.connector_config("c")) == ["connector.class", "file", "tasks.max", "batch.size", "name", "topic"]
