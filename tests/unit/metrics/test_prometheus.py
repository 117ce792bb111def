"""Prometheus' client library can parse the metrics page with its counters and states."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headrace.herder.states import State, StatusStore
from headrace.metrics import prometheus


def test_metrics_page_is_well_formed() -> None:
    statuses = StatusStore("w")
    statuses.set('a"b\\c', None, State.RUNNING)
    statuses.set('a"b\\c', 0, State.FAILED)
    page = prometheus.render(statuses, ['a"b\\c'], [('a"b\\c', 0, {"records": 7, "batches": 2})])
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (records,) = families["headrace_connect_task_records"].samples
    assert (records.labels, records.value) == ({"connector": 'a"b\\c', "task": "0"}, 7)
    states = {(s.labels.get("task"), s.labels["state"]) for s in families["headrace_connect_state"].samples}
    assert states == {(None, "RUNNING"), ("0", "FAILED")}
