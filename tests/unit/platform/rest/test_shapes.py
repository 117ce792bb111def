"""Tests of the JSON documents that the REST API returns."""

from __future__ import annotations

from headrace.herder.herder import ConnectorInfo, ConnectorStatus
from headrace.rest import shapes
from headrace.stores.status_store import State, Status


def test_status_document_contains_traces_only_for_failed_tasks_and_omits_unknown_versions() -> None:
    running = Status(State.RUNNING, "worker:8083", trace="old", version="1.2")
    failed = Status(State.FAILED, "worker:8083", trace="trace")
    status = ConnectorStatus("c", running, {0: running, 1: failed}, "source")
    assert shapes.connector_status(status) == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "worker:8083", "version": "1.2"},
        "tasks": [
            {"id": 0, "state": "RUNNING", "worker_id": "worker:8083", "version": "1.2"},
            {"id": 1, "state": "FAILED", "worker_id": "worker:8083", "trace": "trace"},
        ],
        "type": "source",
    }


def test_connector_info_document_lists_the_tasks() -> None:
    assert shapes.connector_info(ConnectorInfo("c", {"a": "1"}, 2, "sink")) == {
        "name": "c",
        "config": {"a": "1"},
        "tasks": [{"connector": "c", "task": 0}, {"connector": "c", "task": 1}],
        "type": "sink",
    }
    assert shapes.task_configs("c", [{"b": "2"}]) == [{"id": {"connector": "c", "task": 0}, "config": {"b": "2"}}]


def test_offsets_document_is_a_list_of_partition_and_offset_pairs() -> None:
    assert shapes.offsets([({"p": 1}, {"o": 2})]) == {"offsets": [{"partition": {"p": 1}, "offset": {"o": 2}}]}
