"""Tests that changes of one connector are serialized, and that no instance of a deleted connector keeps running."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.herder.errors import BadRequestError, HerderError, NotFoundError
from headrace.herder.standalone import StandaloneHerder
from headrace.stores.config_store import PutTargetState, TargetState
from support.herder import CONFIG, make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_requests_that_wait_while_their_connector_is_deleted_fail_with_a_not_found_error(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    outcomes = await asyncio.gather(
        herder.delete("c"),
        herder.set_target("c", TargetState.PAUSED),
        herder.restart("c", include_tasks=True, only_failed=False),
        herder.restart_task("c", 0),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes[1:]] == [NotFoundError] * 3
    assert herder.names() == []
    assert not worker.running


async def test_put_request_that_waits_while_its_connector_is_deleted_creates_the_connector_again(
    tmp_path: Path,
) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await asyncio.gather(herder.put("c", CONFIG | {"a": "1"}), herder.delete("c"), herder.put("c", CONFIG | {"a": "2"}))
    assert herder.names() == ["c"]
    assert len(worker.running) == 3  # the connector and its two tasks
    await herder.delete("c")
    assert not worker.running


async def test_concurrent_patches_of_one_connector_are_all_applied(tmp_path: Path) -> None:
    herder, _ = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    await asyncio.gather(*(herder.patch("c", {f"key{n}": "x"}) for n in range(5)))
    assert set(herder.connector_config("c")) == {"connector.class", "name", *(f"key{n}" for n in range(5))}


async def test_restart_of_a_task_that_a_concurrent_reconfiguration_removed_fails_with_a_not_found_error(
    tmp_path: Path,
) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG)
    worker.tasks = 1
    change = asyncio.ensure_future(herder.put("c", CONFIG | {"a": "1"}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the put operation now holds the connector's lock
    with pytest.raises(NotFoundError, match="Unknown task: c-1"):
        await herder.restart_task("c", 1)
    await change
    assert list(herder.status("c").tasks) == [0]


async def change_offsets(herder: StandaloneHerder, request_name: str) -> None:
    if request_name == "reset":
        await herder.reset_offsets("c")
    else:
        await herder.alter_offsets("c", [({"p": 1}, {"o": 9})])


@pytest.mark.parametrize("request_name", ["alter", "reset"])
async def test_offsets_are_not_changed_if_another_leader_resumes_the_connector_during_the_plugins_alter_offsets_call(
    tmp_path: Path, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG, target=TargetState.STOPPED)
    await herder.alter_offsets("c", [({"p": 1}, {"o": 1})])

    async def resume_meanwhile(*_arguments: Any, **_options: Any) -> bool:
        await herder._configs.append(PutTargetState("c", TargetState.STARTED))
        return True

    monkeypatch.setattr(worker, "alter_offsets", resume_meanwhile)
    with pytest.raises(BadRequestError, match="must be in the STOPPED state"):
        await change_offsets(herder, request_name)
    assert await herder.offsets("c") == [({"p": 1}, {"o": 1})]


@pytest.mark.parametrize("request_name", ["alter", "reset"])
async def test_offsets_are_not_changed_if_the_worker_loses_its_membership_during_the_plugins_alter_offsets_call(
    tmp_path: Path, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder, _ = await make_herder(tmp_path)
    await herder.put("c", CONFIG, target=TargetState.STOPPED)
    await herder.alter_offsets("c", [({"p": 1}, {"o": 1})])

    def fail() -> None:
        raise HerderError("lost its membership")

    monkeypatch.setattr(herder, "_check_membership", fail)
    with pytest.raises(HerderError, match="lost its membership"):
        await change_offsets(herder, request_name)
    assert await herder.offsets("c") == [({"p": 1}, {"o": 1})]


async def test_stopped_connector_stays_stopped_after_a_restart_request(tmp_path: Path) -> None:
    herder, worker = await make_herder(tmp_path)
    await herder.put("c", CONFIG, target=TargetState.STOPPED)
    await herder.restart("c", include_tasks=True, only_failed=False)
    assert herder.status("c").connector.state == "STOPPED"
    assert not worker.running


@pytest.mark.parametrize("seed", range(20))
async def test_exactly_the_configured_connectors_and_tasks_run_after_concurrent_requests_in_random_order(
    tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    herder, worker = await make_herder(tmp_path)

    async def change(name: str) -> None:
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        worker.tasks = rng.randrange(4)
        match rng.randrange(7):
            case 0 | 1:
                await herder.put(name, CONFIG | {"n": str(rng.random())})
            case 2:
                await herder.patch(name, {"n": str(rng.random())})
            case 3:
                await herder.delete(name)
            case 4:
                await herder.set_target(name, rng.choice(list(TargetState)))
            case 5:
                await herder.restart(name, include_tasks=rng.random() < 0.5, only_failed=False)
            case 6:
                await herder.restart_task(name, rng.randrange(3))

    outcomes = await asyncio.gather(*(change(rng.choice("ab")) for _ in range(60)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), NotFoundError}
    expected: list[str] = []
    for name in herder.names():
        state = herder.status(name).connector.state.value
        expected += [name] if state == "RUNNING" else []
        expected += [f"{name}-{task}" for task in range(herder.info(name).task_count) if state != "STOPPED"]
        assert list(herder.status(name).tasks) == list(range(herder.info(name).task_count))
    assert worker.running_names() == sorted(expected)
