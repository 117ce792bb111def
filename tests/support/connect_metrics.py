"""The metric names of Kafka Connect, and a worker's metrics page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from support.metrics import Samples
from support.worker import Worker

REGISTRY = {
    "connector-metrics": ("status", "connector-type", "connector-class", "connector-version"),
    "connector-task-metrics": (
        *("status", "running-ratio", "pause-ratio", "offset-commit-max-time-ms", "offset-commit-avg-time-ms"),
        *("batch-size-max", "batch-size-avg", "offset-commit-failure-percentage", "offset-commit-success-percentage"),
        *("connector-class", "connector-version", "connector-type", "task-class", "task-version"),
        *("key-converter-class", "value-converter-class", "key-converter-version", "value-converter-version"),
        *("header-converter-class", "header-converter-version"),
    ),
    "connector-transform-metrics": ("transform-class", "transform-version"),
    "connector-predicate-metrics": ("predicate-class", "predicate-version"),
    "source-task-metrics": (
        *("source-record-poll-rate", "source-record-poll-total", "source-record-write-rate"),
        *("source-record-write-total", "poll-batch-max-time-ms", "poll-batch-avg-time-ms"),
        *("source-record-active-count", "source-record-active-count-max", "source-record-active-count-avg"),
        *("transaction-size-min", "transaction-size-max", "transaction-size-avg"),
    ),
    "sink-task-metrics": (
        *("sink-record-read-rate", "sink-record-read-total", "sink-record-send-rate", "sink-record-send-total"),
        *("sink-record-lag-max", "partition-count", "offset-commit-seq-no", "offset-commit-completion-rate"),
        *("offset-commit-completion-total", "offset-commit-skip-rate", "offset-commit-skip-total"),
        *("put-batch-max-time-ms", "put-batch-avg-time-ms", "sink-record-active-count"),
        *("sink-record-active-count-max", "sink-record-active-count-avg"),
    ),
    "connect-worker-metrics": (
        *("connector-count", "task-count", "connector-startup-attempts-total", "connector-startup-success-total"),
        *("connector-startup-success-percentage", "connector-startup-failure-total"),
        *("connector-startup-failure-percentage", "task-startup-attempts-total", "task-startup-success-total"),
        *("task-startup-success-percentage", "task-startup-failure-total", "task-startup-failure-percentage"),
        *("connector-total-task-count", "connector-running-task-count", "connector-paused-task-count"),
        *("connector-failed-task-count", "connector-unassigned-task-count", "connector-destroyed-task-count"),
        "connector-restarting-task-count",
    ),
    "connect-worker-rebalance-metrics": (
        *("connect-protocol", "leader-name", "epoch", "completed-rebalances-total", "rebalancing"),
        *("rebalance-max-time-ms", "rebalance-avg-time-ms", "time-since-last-rebalance-ms"),
    ),
    "task-error-metrics": (
        *("total-record-failures", "total-record-errors", "total-records-skipped", "total-retries"),
        *("total-errors-logged", "deadletterqueue-produce-requests", "deadletterqueue-produce-failures"),
        "last-error-timestamp",
    ),
}
"""The names in ConnectMetricsRegistry of Kafka 4.3.1, by group."""

LEFT_OUT = {
    *(f"connector-task-metrics {name}" for name in REGISTRY["connector-task-metrics"][9:]),
    *(f"connector-transform-metrics {name}" for name in REGISTRY["connector-transform-metrics"]),
    *(f"connector-predicate-metrics {name}" for name in REGISTRY["connector-predicate-metrics"]),
    *(f"source-task-metrics transaction-size-{name}" for name in ("min", "max", "avg")),
}
"""The metrics that a worker does not have. docs/connect.md lists them with the reasons."""

AS_LABELS = {
    "connector-metrics status": "kafka_connect_connector_status",
    "connector-metrics connector-type": "kafka_connect_connector_metrics",
    "connector-metrics connector-class": "kafka_connect_connector_metrics",
    "connector-metrics connector-version": "kafka_connect_connector_metrics",
    "connector-task-metrics status": "kafka_connect_connector_task_status",
}
"""The metrics whose value is a text. On the page, this text is the label of a metric with the value 1."""


def page_names(group: str, name: str) -> set[str]:
    """Return the names on the page of a metric of Kafka Connect: that of jmx_exporter's rules, and Confluent's."""
    if (metric := AS_LABELS.get(f"{group} {name}")) is not None:
        return {metric}
    short = group.removesuffix("-metrics").replace("connect-worker", "worker")
    return {f"kafka_connect_{each}_{name}".replace("-", "_") for each in (short, group)}


def scrape(worker: Worker) -> Samples:
    """Return the samples of a worker's metrics page."""
    samples: Samples = {}
    for family in text_string_to_metric_families(worker.request("GET", "/metrics")):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def total(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the sum of the samples with this name and at least these labels, or None if there are none."""
    found = [
        value for (each, pairs), value in samples.items() if each == name and labels.items() <= dict(pairs).items()
    ]
    return sum(found) if found else None
