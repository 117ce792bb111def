"""Tests of the operations pause, resume and stop, which change the target state of a connector."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.config_store import TargetState
from support.herder import CONFIG, make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_pause_stops_the_connector_instance_and_pauses_its_tasks(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    first = set(worker.running)
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.running_names() == ["c-0", "c-1"]
    assert worker.sent_orders == [("c-0", "pause"), ("c-1", "pause")]
    assert herder.status("c").connector.state == "PAUSED"
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.running_names() == ["c-0", "c-1"]

    worker.sent_orders.clear()
    await herder.set_target("c", TargetState.STARTED)
    assert worker.running_names() == ["c", "c-0", "c-1"]
    assert worker.sent_orders == [("c-0", "resume"), ("c-1", "resume")]
    assert {i for i in worker.running if i.task is not None} == {i for i in first if i.task is not None}
    assert {i for i in worker.running if i.task is None} != {i for i in first if i.task is None}
    assert herder.status("c").connector.state == "RUNNING"


async def test_connector_that_was_created_in_state_paused_starts_when_it_is_resumed(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG, target=TargetState.PAUSED)
    assert worker.running_names() == []
    assert herder.status("c").connector.state == "PAUSED"
    await herder.set_target("c", TargetState.STARTED)
    assert worker.running_names() == ["c", "c-0", "c-1"]


async def test_configuration_change_of_a_paused_connector_takes_effect_when_it_is_resumed(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.PAUSED)
    before = set(worker.running)
    await herder.put("c", CONFIG | {"a": "1"})
    assert worker.running == before
    await herder.set_target("c", TargetState.STARTED)
    assert worker.running_names() == ["c", "c-0", "c-1"]
    assert not worker.running & before


async def test_paused_connector_stays_paused_after_a_restart_request(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.PAUSED)
    await herder.restart("c", include_tasks=True, only_failed=False)
    assert worker.running_names() == ["c-0", "c-1"]
    assert herder.status("c").connector.state == "PAUSED"


async def test_pause_of_a_failed_connector_pauses_only_its_tasks(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    worker.fails_to_start = True
    await herder.restart("c", include_tasks=True, only_failed=False)
    assert herder.status("c").connector.state == "FAILED"
    await herder.set_target("c", TargetState.PAUSED)
    assert herder.status("c").connector.state == "FAILED"
    assert worker.sent_orders == [("c-0", "pause"), ("c-1", "pause")]
    await herder.set_target("c", TargetState.STOPPED)
    assert herder.status("c").connector.state == "STOPPED"
    assert worker.running_names() == []


async def test_stopped_connector_and_its_tasks_do_not_run_until_the_connector_is_resumed(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.STOPPED)
    assert worker.running_names() == []
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.running_names() == []
    await herder.set_target("c", TargetState.STARTED)
    assert worker.running_names() == ["c", "c-0", "c-1"]
