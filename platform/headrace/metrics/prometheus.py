"""The worker's metrics page in Prometheus' text format, with the metric names that dashboards for Kafka Connect use.

The page contains the metrics of tasks and workers under two names: those of jmx_exporter's rules for Kafka Connect
(`kafka_connect_source_task_...`), and Confluent's (`kafka_connect_source_task_metrics_...`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from headrace.herder.herder import ConnectorStatus, RebalanceMetrics, StartCounts, WorkerMetrics
from headrace.metrics import task_page

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TASK_STATES = ("running", "paused", "failed", "unassigned", "destroyed", "restarting")


def render(metrics: WorkerMetrics) -> bytes:
    """Return the page with the worker's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PageCollector(metrics))
    ProcessCollector(registry=registry)  # measures the worker's process, not those of connectors and tasks
    types = {status.name: status.type for status in metrics.statuses}
    return generate_latest(registry) + task_page.render(metrics.tasks, types)


class _PageCollector(Collector):
    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from _worker_metrics(self._metrics)
        if self._metrics.rebalances is not None:
            yield from _rebalance_metrics(self._metrics.rebalances)
        yield from _task_counts(self._metrics.statuses)
        yield from _statuses(self._metrics)


def _worker_metrics(metrics: WorkerMetrics) -> Iterator[Metric]:
    task_count = sum(len(status.tasks) for status in metrics.statuses)
    for prefix in ("kafka_connect_worker_", "kafka_connect_connect_worker_metrics_"):
        yield GaugeMetricFamily(f"{prefix}connector_count", "Connectors of this worker", len(metrics.connectors))
        yield GaugeMetricFamily(f"{prefix}task_count", "Tasks of this worker", task_count)
        yield from _start_counts(f"{prefix}connector_startup", "connectors", metrics.connector_starts)
        yield from _start_counts(f"{prefix}task_startup", "tasks", metrics.task_starts)


def _start_counts(prefix: str, kind: str, counts: StartCounts) -> Iterator[Metric]:
    yield CounterMetricFamily(f"{prefix}_attempts_total", f"Starts of {kind}", counts.attempts)
    yield CounterMetricFamily(f"{prefix}_success_total", f"Starts of {kind} that succeeded", counts.successes)
    yield CounterMetricFamily(f"{prefix}_failure_total", f"Starts of {kind} that failed", counts.failures)
    attempts = counts.attempts or 1
    success, failure = counts.successes / attempts, counts.failures / attempts
    yield GaugeMetricFamily(f"{prefix}_success_percentage", f"Share of starts of {kind} that succeeded", success)
    yield GaugeMetricFamily(f"{prefix}_failure_percentage", f"Share of starts of {kind} that failed", failure)


def _rebalance_metrics(metrics: RebalanceMetrics) -> Iterator[Metric]:
    """Yield the metrics of a worker in a group.

    A value that is a text, such as the leader's URL, is the label of a metric with the value 1.
    """
    for prefix in ("kafka_connect_worker_rebalance_", "kafka_connect_connect_worker_rebalance_metrics_"):
        for name, text, label in (
            ("leader_name", "1 for the URL of the group's leader", metrics.leader_name),
            ("connect_protocol", "1 for the version of the group protocol", metrics.protocol),
        ):
            family = GaugeMetricFamily(prefix + name, text, labels=[name])
            family.add_metric([label], 1)
            yield family
        yield GaugeMetricFamily(f"{prefix}epoch", "Generation of the group", metrics.epoch)
        yield CounterMetricFamily(f"{prefix}completed_rebalances_total", "Completed rebalances", metrics.completed)
        # Confluent's dashboard for jmx_exporter 1.0 and later has no `_total` here.
        yield UnknownMetricFamily(f"{prefix}completed_rebalances", "Completed rebalances", metrics.completed)
        yield GaugeMetricFamily(f"{prefix}rebalancing", "1 during a rebalance, otherwise 0", metrics.is_rebalancing)
        yield GaugeMetricFamily(f"{prefix}rebalance_avg_time_ms", "Average duration of a rebalance", metrics.avg_ms)
        yield GaugeMetricFamily(f"{prefix}rebalance_max_time_ms", "Longest duration of a rebalance", metrics.max_ms)
        yield GaugeMetricFamily(
            f"{prefix}time_since_last_rebalance_ms", "Time since the last rebalance", metrics.since_last_ms
        )


def _task_counts(statuses: Iterable[ConnectorStatus]) -> Iterator[Metric]:
    counts = {status.name: _count_by_state(status) for status in statuses}
    for prefix in ("kafka_connect_worker_connector_", "kafka_connect_connect_worker_metrics_connector_"):
        total = GaugeMetricFamily(
            f"{prefix}total_task_count", "Tasks of the connector on this worker", labels=["connector"]
        )
        for name, by_state in counts.items():
            total.add_metric([name], sum(by_state.values()))
        yield total
        for state in _TASK_STATES:
            family = GaugeMetricFamily(
                f"{prefix}{state}_task_count",
                f"Tasks of the connector on this worker in the state {state}",
                labels=["connector"],
            )
            for name, by_state in counts.items():
                family.add_metric([name], by_state.get(state, 0))
            yield family


def _count_by_state(status: ConnectorStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in status.tasks.values():
        state = task.state.value.lower()
        counts[state] = counts.get(state, 0) + 1
    return counts


def _statuses(metrics: WorkerMetrics) -> Iterator[Metric]:
    connectors = GaugeMetricFamily(
        "kafka_connect_connector_status", "1 for the connector's state", labels=["connector", "status"]
    )
    tasks = GaugeMetricFamily(
        "kafka_connect_connector_task_status", "1 for the task's state", labels=["connector", "task", "status"]
    )
    attributes = GaugeMetricFamily(
        "kafka_connect_connector_metrics",
        "1 for the connector's state, type, class and version",
        labels=["connector", "status", "connector_type", "connector_class", "connector_version"],
    )
    for each in metrics.statuses:
        if each.name in metrics.connectors:
            state, version = each.connector.state.value.lower(), each.connector.version or ""
            connectors.add_metric([each.name, state], 1)
            attributes.add_metric([each.name, state, each.type, metrics.classes.get(each.name, ""), version], 1)
        for number, task in each.tasks.items():
            tasks.add_metric([each.name, str(number), task.state.value.lower()], 1)
    return iter((connectors, tasks, attributes))
