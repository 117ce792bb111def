"""Tests of the measurements of a task in the worker."""

from __future__ import annotations

from headrace.runtime.messages import CountersReported, LagsReported
from headrace.runtime.record_lags import PartitionLag
from headrace.runtime.spec import InstanceId
from headrace.runtime.task_metrics import TaskMeter

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
