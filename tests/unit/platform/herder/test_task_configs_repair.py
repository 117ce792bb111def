"""Tests of TaskConfigsRepair.

The leader rewrites task configurations that are older than the configuration of their connector.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from headrace.herder.task_configs_repair import TaskConfigsRepair
from headrace.stores.config_store import (
    ConfigSnapshot,
    MemoryConfigStore,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    TargetState,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Group:
    """A config store with its current snapshot, and the TaskConfigsRepair of a worker that may be the leader."""

    def __init__(self) -> None:
        self.configs, self.is_leader, locks = MemoryConfigStore(), True, defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.snapshot = ConfigSnapshot()
        self.writer = TaskConfigsRepair(self.configs, lambda: self.snapshot, lambda: self.is_leader, locks.__getitem__)

    async def put(self, *changes: PutConnector | PutTargetState | PutTaskConfigs) -> None:
        await self.configs.start(lambda change, snapshot: setattr(self, "snapshot", snapshot))
        for change in changes:
            await self.configs.append(change)

    async def pause_and_change(self, name: str, *, tasks: int = 1, target: TargetState = TargetState.PAUSED) -> None:
        await self.put(
            PutConnector(name, {"v": "1"}, None),
            PutTaskConfigs(name, [{"n": str(number)} for number in range(tasks)]),
            PutTargetState(name, target),
            PutConnector(name, {"v": "2"}, None),
        )


async def test_leader_writes_task_configs_of_each_paused_connector_again_after_a_configuration_change() -> None:
    group = Group()
    await group.pause_and_change("a", tasks=2)
    await group.pause_and_change("b")
    assert group.writer.is_due(group.snapshot)
    await group.writer.run()
    for name, tasks in ("a", [{"n": "0"}, {"n": "1"}]), ("b", [{"n": "0"}]):
        state = group.snapshot.connectors[name]
        assert list(state.task_configs) == tasks
        assert state.task_configs_offset > state.config_offset
        assert (state.target, state.config, state.applied_config) == (TargetState.PAUSED, {"v": "2"}, {"v": "2"})
    assert not group.writer.is_due(group.snapshot)


async def test_worker_that_is_not_the_leader_does_not_write_task_configs_of_paused_connectors() -> None:
    group = Group()
    await group.pause_and_change("a")
    before, group.is_leader = group.snapshot, False
    assert not group.writer.is_due(group.snapshot)
    await group.writer.run()
    assert group.snapshot == before


async def test_leader_rewrites_task_configs_if_an_unchanged_connector_config_is_stored_again() -> None:
    """Compaction removes the connector config before the task configs. Workers would then ignore the task configs.

    A running connector does not generate its task configs again, because its configuration is unchanged. The leader
    must therefore write the stored task configs again.
    """
    group = Group()
    await group.put(PutConnector("a", {}, None), PutTaskConfigs("a", [{"n": "0"}]), PutConnector("a", {}, None))
    await group.writer.run()
    state = group.snapshot.connectors["a"]
    assert (list(state.task_configs), state.task_configs_offset) == ([{"n": "0"}], 3)


async def test_leader_removes_task_configs_of_a_stopped_connector() -> None:
    """A former leader may write task configs after the connector was stopped."""
    group = Group()
    await group.pause_and_change("a", target=TargetState.STOPPED)
    await group.writer.run()
    assert list(group.snapshot.connectors["a"].task_configs) == []


async def test_leader_removes_task_configs_that_precede_the_connector_configuration_in_the_config_topic() -> None:
    group = Group()
    await group.put(PutConnector("a", {}, TargetState.PAUSED))
    ignoring = replace(group.snapshot.connectors["a"], has_ignored_tasks=True)
    assert not group.writer.is_due(group.snapshot)
    assert group.writer.is_due(replace(group.snapshot, connectors={"a": ignoring}))
    assert ignoring.tasks_to_rewrite() == ()


@pytest.mark.parametrize(("tasks", "target"), [(1, TargetState.STARTED), (0, TargetState.PAUSED)])
async def test_leader_rewrites_no_task_configs_after_a_configuration_change_if_connector_is_running_or_has_no_tasks(
    tasks: int, target: TargetState
) -> None:
    group = Group()
    await group.pause_and_change("a", tasks=tasks, target=target)
    assert not group.writer.is_due(group.snapshot)


async def test_leader_does_not_write_task_configs_of_a_connector_that_is_resumed_before_the_write() -> None:
    group = Group()
    await group.pause_and_change("a")
    async with group.writer._lock("a"):
        writing = asyncio.create_task(group.writer.run())
        await asyncio.sleep(0)  # the writer waits for the lock
        await group.put(PutTargetState("a", TargetState.STARTED))
        before = group.snapshot
    await writing
    assert group.snapshot == before
