"""Tests of the measurements of a task in the worker."""

from __future__ import annotations

import pytest

from headrace.metrics import task_page
from headrace.runtime.messages import CountersReported, LagsReported, RegisteredMetric
from headrace.runtime.record_lags import PartitionLag
from headrace.runtime.registered_metrics import RegisteredMetrics
from headrace.runtime.spec import InstanceId
from headrace.runtime.task_metrics import TaskMeter, TaskMetrics

ID = InstanceId("c", 0, 1)
LAG = PartitionLag("t", 0, 3, 2.0, 4.0)


def metered() -> TaskMeter:
    meter = TaskMeter("c", 0)
    meter.change_state("RUNNING", 0.0)
    meter.handle(CountersReported(ID, {"total_record_errors": 1}, {"record_rate": 7.0}))
    meter.handle(LagsReported(ID, "client", [LAG]))
    return meter


def test_metrics_of_a_running_task_contain_its_counters_gauges_and_lags() -> None:
    metrics = metered().metrics(5.0)
    assert metrics.values == {"total_record_errors": 1, "record_rate": 7.0, "running_ratio": 1, "pause_ratio": 0}
    assert (metrics.client_id, metrics.lags) == ("client", [LAG])


def test_counters_of_a_failed_task_remain_but_its_rates_and_lags_do_not() -> None:
    meter = metered()
    meter.change_state("FAILED", 5.0)
    metrics = meter.metrics(20.0)
    assert metrics.values == {"total_record_errors": 1, "running_ratio": 0.25, "pause_ratio": 0}
    assert metrics.lags == ()


def test_registered_counters_of_a_failed_task_remain_but_its_gauges_do_not() -> None:
    rows, lag = RegisteredMetric("rows-total", "counter", "Rows", 3), RegisteredMetric("lag", "gauge", "Lag", 2)
    meter = metered()
    meter.handle(CountersReported(ID, {}, {}, [rows, lag]))
    assert meter.metrics(5.0).registered == [rows, lag]
    meter.change_state("FAILED", 5.0)
    assert meter.metrics(20.0).registered == [rows]


def test_metrics_are_registered_once_by_name() -> None:
    metrics = RegisteredMetrics()
    metrics.counter("rows-total", "Rows").add(2)
    metrics.counter("rows-total", "Rows").add()
    metrics.gauge("freshness", "Seconds").set(4)
    assert metrics.current() == [
        RegisteredMetric("rows-total", "counter", "Rows", 3),
        RegisteredMetric("freshness", "gauge", "Seconds", 4),
    ]
    with pytest.raises(ValueError, match="already registered as a counter"):
        metrics.gauge("rows-total", "Rows")
    with pytest.raises(ValueError, match="cannot decrease by 1"):
        metrics.counter("rows-total", "Rows").add(-1)
    with pytest.raises(ValueError, match="a name consists of letters"):
        metrics.gauge("a b", "")


def test_metrics_page_shows_the_registered_metrics_of_all_tasks_as_metrics_of_plugins() -> None:
    tasks = [
        TaskMetrics("a", 0, {}, registered=[RegisteredMetric("rows-total", "counter", "Rows", 3)]),
        TaskMetrics("b", 1, {}, registered=[RegisteredMetric("rows-total", "counter", "Rows", float("inf"))]),
    ]
    assert (
        "# HELP kafka_connect_plugins_rows_total Rows\n"
        "# TYPE kafka_connect_plugins_rows_total counter\n"
        'kafka_connect_plugins_rows_total{connector="a",task="0"} 3.0\n'
        'kafka_connect_plugins_rows_total{connector="b",task="1"} +Inf\n'
    ) in task_page.render(tasks, {}).decode()
