"""Tests of MemoryStatusStore, which stores the statuses of connectors and tasks."""

from __future__ import annotations

from headrace.stores.status_store import ConnectorStatuses, MemoryStatusStore, State, Status

RUNNING = Status(State.RUNNING, "w")


def test_task_statuses_of_a_connector_are_in_the_order_of_task_numbers() -> None:
    store = MemoryStatusStore()
    for task in (2, None, 0):
        store.put("c", task, RUNNING)
    assert store.get("c").connector == RUNNING
    assert list(store.get("c").tasks) == [0, 2]


def test_removal_of_a_connector_status_removes_the_statuses_of_its_tasks() -> None:
    store = MemoryStatusStore()
    for name in ("c", "d"):
        store.put(name, None, RUNNING)
        store.put(name, 0, RUNNING)
    store.remove("c", None)
    store.remove("d", 0)
    store.remove("unknown", 1)
    assert store.get("c") == ConnectorStatuses()
    assert store.get("d") == ConnectorStatuses(RUNNING, {})
