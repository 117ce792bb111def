"""Tests of the config store.

Snapshots contain the configuration changes in the order in which they were appended, and the
listener receives each change.
"""

from __future__ import annotations

import pytest

from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    DeleteConnector,
    MemoryConfigStore,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def snapshot_of(*changes: ConfigChange) -> ConfigSnapshot:
    snapshot = ConfigSnapshot()
    for offset, change in enumerate(changes):
        snapshot = snapshot.apply(offset, change)
    return snapshot


def test_new_configuration_of_a_connector_keeps_its_target_state_and_tasks() -> None:
    state = snapshot_of(
        PutConnector("c", {"a": "1"}, TargetState.PAUSED), PutTaskConfigs("c", [{"t": "0"}]), PutConnector("c", {})
    ).connectors["c"]
    assert state.target is TargetState.PAUSED
    assert (state.config_offset, state.task_configs_offset) == (2, 1)
    assert list(state.task_configs) == [{"t": "0"}]
    assert state.applied_config == {"a": "1"}


def test_connector_that_was_deleted_and_created_again_has_target_state_started_and_no_tasks() -> None:
    snapshot = snapshot_of(
        PutConnector("c", {}),
        PutTargetState("c", TargetState.STOPPED),
        PutTaskConfigs("c", [{}]),
        DeleteConnector("c"),
        PutConnector("c", {}),
    )
    state = snapshot.connectors["c"]
    assert (state.target, list(state.task_configs), state.applied_config) == (TargetState.STARTED, [], None)


def test_changes_of_unknown_connectors_have_no_effect() -> None:
    snapshot = snapshot_of(
        PutTaskConfigs("c", [{}]),
        PutTargetState("c", TargetState.PAUSED),
        DeleteConnector("c"),
        RequestRestart("c", include_tasks=True, only_failed=False),
    )
    assert snapshot == ConfigSnapshot(3, {})


def test_initial_state_running_paused_or_stopped_is_parsed_to_a_target_state() -> None:
    assert TargetState.from_initial_state("running") is TargetState.STARTED
    assert TargetState.from_initial_state("Stopped") is TargetState.STOPPED
    with pytest.raises(ValueError, match="must be one of RUNNING, PAUSED, STOPPED"):
        TargetState.from_initial_state("STARTED")


async def test_config_listener_receives_each_change_before_the_append_completes() -> None:
    """The listener also receives the new snapshot, which contains the change."""
    store, received = MemoryConfigStore(), list[tuple[ConfigChange, ConfigSnapshot]]()
    assert await store.append(PutConnector("before", {})) == 0
    snapshot = await store.start(lambda change, snapshot: received.append((change, snapshot)))
    assert (snapshot.offset, list(snapshot.connectors)) == (0, ["before"])
    changes: list[ConfigChange] = [PutConnector("c", {}), DeleteConnector("before")]
    assert [await store.append(change) for change in changes] == [1, 2]
    assert [(change, after.offset) for change, after in received] == [(changes[0], 1), (changes[1], 2)]
    assert list((await store.refresh(1)).connectors) == ["c"]
    await store.stop()
    await store.append(DeleteConnector("c"))
    assert len(received) == 2
