"""What runs in each state that a user may want (Connect's rules of pause, resume and stop)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.herder.states import TargetState
from support.herder import CONFIG, make

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_paused_connector_is_stopped_and_its_tasks_rest(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG)
    first = set(worker.running)
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.names() == ["c-0", "c-1"]
    assert worker.told == [("c-0", "pause"), ("c-1", "pause")]
    assert herder.status("c")["connector"]["state"] == "PAUSED"
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.names() == ["c-0", "c-1"]

    worker.told.clear()
    await herder.set_target("c", TargetState.STARTED)
    assert worker.names() == ["c", "c-0", "c-1"]
    assert worker.told == [("c-0", "resume"), ("c-1", "resume")]
    assert {i for i in worker.running if i.task is not None} == {i for i in first if i.task is not None}
    assert {i for i in worker.running if i.task is None} != {i for i in first if i.task is None}
    assert herder.status("c")["connector"]["state"] == "RUNNING"


async def test_a_connector_made_paused_starts_with_its_tasks_when_it_is_resumed(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG, target=TargetState.PAUSED)
    assert worker.names() == []
    assert herder.status("c")["connector"]["state"] == "PAUSED"
    await herder.set_target("c", TargetState.STARTED)
    assert worker.names() == ["c", "c-0", "c-1"]


async def test_a_configuration_given_while_paused_is_taken_up_by_the_tasks_at_resume(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.PAUSED)
    before = set(worker.running)
    await herder.put("c", CONFIG | {"a": "1"})
    assert worker.running == before
    await herder.set_target("c", TargetState.STARTED)
    assert worker.names() == ["c", "c-0", "c-1"]
    assert not worker.running & before


async def test_a_restart_leaves_a_paused_connector_paused(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.PAUSED)
    await herder.restart("c", include_tasks=True, only_failed=False)
    assert worker.names() == ["c-0", "c-1"]
    assert herder.status("c")["connector"]["state"] == "PAUSED"


async def test_a_failed_connector_refuses_to_be_paused_but_its_tasks_rest(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG)
    worker.fails = True
    await herder.restart("c", include_tasks=False, only_failed=False)
    assert herder.status("c")["connector"]["state"] == "FAILED"
    await herder.set_target("c", TargetState.PAUSED)
    assert herder.status("c")["connector"]["state"] == "FAILED"
    assert worker.told == [("c-0", "pause"), ("c-1", "pause")]
    await herder.set_target("c", TargetState.STOPPED)
    assert herder.status("c")["connector"]["state"] == "STOPPED"
    assert worker.names() == []


async def test_a_stopped_connector_is_gone_until_it_is_resumed(tmp_path: Path) -> None:
    herder, worker = make(tmp_path)
    await herder.put("c", CONFIG)
    await herder.set_target("c", TargetState.STOPPED)
    assert worker.names() == []
    await herder.set_target("c", TargetState.PAUSED)
    assert worker.names() == []
    await herder.set_target("c", TargetState.STARTED)
    assert worker.names() == ["c", "c-0", "c-1"]
