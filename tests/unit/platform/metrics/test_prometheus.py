"""Tests that Prometheus' parser accepts a worker's metrics page, and that the page has Kafka Connect's metric names."""

from __future__ import annotations

from math import inf, isnan, nan

from prometheus_client.parser import text_string_to_metric_families

from headrace.herder.herder import ConnectorStatus, RebalanceMetrics, StartCounts, WorkerMetrics
from headrace.metrics import prometheus, task_page
from headrace.runtime.record_lags import PartitionLag
from headrace.runtime.task_metrics import TaskMetrics
from headrace.stores.status_store import State, Status

NAME = 'a"b\\c\n'
ERRORS = {"total_record_failures": 2, "total_records_skipped": 1, "last_error_timestamp": 1_700_000_000_123}
LAGS = [PartitionLag("t", 0, 9, 4.5, 10.0), PartitionLag("t", 1, 2, 2.0, 12.0)]


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of a metrics page with a source connector and a sink connector.

    The second task of the source connector has failed. The worker also runs a task of the connector `shared`. Another
    worker runs the connector itself.
    """
    status = Status(State.RUNNING, "w", version="1.0")
    metrics = WorkerMetrics(
        statuses=[
            ConnectorStatus(NAME, status, {0: status, 1: Status(State.FAILED, "w")}, "source"),
            ConnectorStatus("out", Status(State.PAUSED, "w"), {0: Status(State.PAUSED, "w")}, "sink"),
            ConnectorStatus("shared", Status(State.RUNNING, "other"), {3: status}, "sink"),
        ],
        connectors={NAME, "out"},
        classes={NAME: "FileStreamSource", "out": "FileStreamSink"},
        tasks=[
            TaskMetrics(NAME, 0, {"records": 7, **ERRORS, "call_max_time_ms": 2.5, "call_avg_time_ms": nan}),
            TaskMetrics("out", 0, {"records": 5, "records_passed": 4, "lag_max": 9}, "connector-consumer-out-0", LAGS),
        ],
        connector_starts=StartCounts(2, 2, 0),
        task_starts=StartCounts(3, 2, 1),
        rebalances=RebalanceMetrics("http://l:1/", "sessioned", 7, 3, False, 20.5, 41, inf),
    )
    found = {}
    for family in text_string_to_metric_families(prometheus.render(metrics).decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(name: str, **labels: str) -> float | None:
    return samples().get((name, tuple(sorted(labels.items()))))


def test_task_counters_have_the_metric_names_of_jmx_exporter_and_confluent() -> None:
    for group in ("source_task", "source_task_metrics"):
        assert value(f"kafka_connect_{group}_source_record_write_total", connector=NAME, task="0") == 7
        assert value(f"kafka_connect_{group}_poll_batch_max_time_ms", connector=NAME, task="0") == 2.5
    for group in ("sink_task", "sink_task_metrics"):
        assert value(f"kafka_connect_{group}_sink_record_read_total", connector="out", task="0") == 5
        assert value(f"kafka_connect_{group}_sink_record_send_total", connector="out", task="0") == 4
    for group in ("task_error", "task_error_metrics"):
        assert value(f"kafka_connect_{group}_total_record_failures", connector=NAME, task="0") == 2
        assert value(f"kafka_connect_{group}_total_records_skipped", connector=NAME, task="0") == 1

        assert value(f"kafka_connect_{group}_last_error_timestamp", connector=NAME, task="0") == 1_700_000_000_123


def test_statistic_without_values_is_nan() -> None:
    found = value("kafka_connect_source_task_poll_batch_avg_time_ms", connector=NAME, task="0")
    assert found is not None
    assert isnan(found)


def test_lags_have_the_metric_names_and_labels_of_kafkas_consumer() -> None:
    client = "connector-consumer-out-0"
    for prefix, labels in (
        ("kafka_consumer_fetch_manager", {"clientId": client, "client_id": client}),
        ("kafka_consumer_consumer_fetch_manager_metrics", {"client_id": client}),
    ):
        assert value(f"{prefix}_records_lag", **labels, topic="t", partition="0") == 9
        assert value(f"{prefix}_records_lag_avg", **labels, topic="t", partition="0") == 4.5
        assert value(f"{prefix}_records_lag_max", **labels, topic="t", partition="1") == 12
        assert value(f"{prefix}_records_lag_max", **labels) == 12
    assert value("kafka_connect_sink_task_sink_record_lag_max", connector="out", task="0") == 9


def test_maximum_lag_of_a_task_ignores_partitions_without_recent_values() -> None:
    lags = [PartitionLag("t", partition, 5, nan, maximum) for partition, maximum in enumerate((nan, 7.0, nan))]
    page = task_page.render([TaskMetrics("out", 0, {}, "c", lags)], {"out": "sink"}).decode()
    assert 'kafka_consumer_fetch_manager_records_lag_max{clientId="c",client_id="c"} 7.0' in page.splitlines()


def test_metrics_page_shows_counters_of_sources_only_for_source_connectors() -> None:
    assert value("kafka_connect_source_task_source_record_write_total", connector="out", task="0") is None
    assert value("kafka_connect_sink_task_sink_record_read_total", connector=NAME, task="0") is None


def test_worker_metrics_count_connectors_tasks_and_starts() -> None:
    for prefix in ("kafka_connect_worker", "kafka_connect_connect_worker_metrics"):
        assert value(f"{prefix}_connector_count") == 2
        assert value(f"{prefix}_task_count") == 4
        assert value(f"{prefix}_task_startup_attempts_total") == 3
        assert value(f"{prefix}_task_startup_failure_total") == 1
        assert value(f"{prefix}_connector_startup_success_percentage") == 1
        assert value(f"{prefix}_connector_failed_task_count", connector=NAME) == 1
        assert value(f"{prefix}_connector_total_task_count", connector=NAME) == 2
        assert value(f"{prefix}_connector_failed_task_count", connector="out") == 0


def test_metrics_of_a_connector_that_another_worker_runs_show_only_the_tasks_of_this_worker() -> None:
    prefix = "kafka_connect_worker_connector"
    assert value(f"{prefix}_total_task_count", connector="shared") == 1
    assert value(f"{prefix}_running_task_count", connector="shared") == 1
    assert value("kafka_connect_connector_task_status", connector="shared", task="3", status="running") == 1
    assert value("kafka_connect_connector_status", connector="shared", status="running") is None
    assert not [key for key in samples() if key[0] == "kafka_connect_connector_metrics" and "shared" in str(key)]


def test_rebalance_metrics_have_the_metric_names_of_jmx_exporter_and_confluent() -> None:
    for prefix in ("kafka_connect_worker_rebalance", "kafka_connect_connect_worker_rebalance_metrics"):
        assert value(f"{prefix}_leader_name", leader_name="http://l:1/") == 1
        assert value(f"{prefix}_connect_protocol", connect_protocol="sessioned") == 1
        assert value(f"{prefix}_epoch") == 7
        assert value(f"{prefix}_completed_rebalances_total") == value(f"{prefix}_completed_rebalances") == 3
        assert value(f"{prefix}_rebalancing") == 0
        assert value(f"{prefix}_rebalance_avg_time_ms") == 20.5
        assert value(f"{prefix}_rebalance_max_time_ms") == 41
        assert value(f"{prefix}_time_since_last_rebalance_ms") == inf


def test_connector_and_task_states_are_metric_labels_in_lower_case() -> None:
    assert value("kafka_connect_connector_status", connector="out", status="paused") == 1
    assert value("kafka_connect_connector_task_status", connector=NAME, task="1", status="failed") == 1
    assert (
        value(
            "kafka_connect_connector_metrics",
            connector=NAME,
            status="running",
            connector_type="source",
            connector_class="FileStreamSource",
            connector_version="1.0",
        )
        == 1
    )


def test_metrics_page_contains_metrics_of_the_worker_process() -> None:
    assert (value("process_cpu_seconds_total") or 0) > 0
