"""The part of the metrics page with the metrics of tasks.

A page with hundreds of tasks has tens of thousands of samples. This module therefore writes the lines itself, with the
labels of each task only once. prometheus_client would block the worker's event loop several times as long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.runtime.task_metrics import TaskMetrics


@dataclass(frozen=True, slots=True)
class _Attribute:
    """A metric of a task: its name in Kafka Connect, and the name of the task's value."""

    group: str
    name: str
    value: str
    text: str

    @property
    def names(self) -> tuple[str, str]:
        """The name of the metric in jmx_exporter's rules, and the name that Confluent uses for the metric."""
        return f"kafka_connect_{self.group}_{self.name}", f"kafka_connect_{self.group}_metrics_{self.name}"

    @property
    def type(self) -> str:
        """Counter if the name ends with `_total`, "untyped" if it is the name of another total, otherwise gauge."""
        if self.name.endswith("_total"):
            return "counter"
        return "untyped" if self.name.startswith(("total_", "deadletterqueue_")) else "gauge"


# Group, name in Kafka Connect, name of the task's value, text.
_ATTRIBUTES = [
    _Attribute(*attribute)
    for attribute in (
        ("connector_task", "running_ratio", "running_ratio", "Share of the time that the task has been running"),
        ("connector_task", "pause_ratio", "pause_ratio", "Share of the time that the task has been paused"),
        ("connector_task", "batch_size_avg", "batch_size_avg", "Average number of records in a batch"),
        ("connector_task", "batch_size_max", "batch_size_max", "Largest number of records in a batch"),
        (
            *("connector_task", "offset_commit_avg_time_ms", "offset_commit_avg_time_ms"),
            "Average duration of an offset commit",
        ),
        (
            *("connector_task", "offset_commit_max_time_ms", "offset_commit_max_time_ms"),
            "Longest duration of an offset commit",
        ),
        (
            *("connector_task", "offset_commit_success_percentage", "offset_commit_success_percentage"),
            "Share of offset commits that succeeded, from 0 to 1",
        ),
        (
            *("connector_task", "offset_commit_failure_percentage", "offset_commit_failure_percentage"),
            "Share of offset commits that failed, from 0 to 1",
        ),
        ("source_task", "source_record_poll_rate", "passed_rate", "Records per second that poll has returned"),
        ("source_task", "source_record_poll_total", "records_passed", "Records that the task has returned from poll"),
        ("source_task", "source_record_write_rate", "record_rate", "Records per second written to Kafka"),
        ("source_task", "source_record_write_total", "records", "Records written to Kafka after the transforms"),
        (
            *("source_task", "poll_batch_avg_time_ms", "call_avg_time_ms"),
            "Average duration of a poll that returned records",
        ),
        (
            *("source_task", "poll_batch_max_time_ms", "call_max_time_ms"),
            "Longest duration of a poll that returned records",
        ),
        (
            *("source_task", "source_record_active_count", "active_count"),
            "Records that poll has returned and that are not written to Kafka yet",
        ),
        ("source_task", "source_record_active_count_avg", "active_count_avg", "Average of source_record_active_count"),
        ("source_task", "source_record_active_count_max", "active_count_max", "Maximum of source_record_active_count"),
        ("sink_task", "sink_record_read_rate", "record_rate", "Records per second read from Kafka"),
        ("sink_task", "sink_record_read_total", "records", "Records read from Kafka before the transforms"),
        ("sink_task", "sink_record_send_rate", "passed_rate", "Records per second passed to put"),
        ("sink_task", "sink_record_send_total", "records_passed", "Records passed to put after the transforms"),
        (
            *("sink_task", "sink_record_lag_max", "lag_max"),
            "Greatest number of records in a partition that the task has not received yet",
        ),
        ("sink_task", "partition_count", "partition_count", "Partitions that are assigned to the task"),
        ("sink_task", "offset_commit_seq_no", "offset_commit_seq_no", "Number of the last offset commit"),
        (
            *("sink_task", "offset_commit_completion_rate", "offset_commit_rate"),
            "Offset commits per second that succeeded",
        ),
        ("sink_task", "offset_commit_completion_total", "offset_commits", "Offset commits that succeeded"),
        (
            *("sink_task", "offset_commit_skip_rate", "offset_commit_skip_rate"),
            "Offset commits per second whose response arrived after a later commit had begun",
        ),
        (
            *("sink_task", "offset_commit_skip_total", "offset_commits_skipped"),
            "Offset commits whose response arrived after a later commit had begun",
        ),
        ("sink_task", "put_batch_avg_time_ms", "call_avg_time_ms", "Average duration of a put"),
        ("sink_task", "put_batch_max_time_ms", "call_max_time_ms", "Longest duration of a put"),
        (
            *("sink_task", "sink_record_active_count", "active_count"),
            "Records that were read from Kafka and whose offsets are not committed yet",
        ),
        ("sink_task", "sink_record_active_count_avg", "active_count_avg", "Average of sink_record_active_count"),
        ("sink_task", "sink_record_active_count_max", "active_count_max", "Maximum of sink_record_active_count"),
        (
            *("task_error", "total_record_failures", "total_record_failures"),
            "Failed attempts to process a record, including those that were retried",
        ),
        (
            *("task_error", "total_record_errors", "total_record_errors"),
            "Records that failed in the task, a transform or a converter, or that could not be written to Kafka",
        ),
        (
            *("task_error", "total_records_skipped", "total_records_skipped"),
            "Failed records that were skipped because errors are tolerated",
        ),
        (
            *("task_error", "total_errors_logged", "total_errors_logged"),
            "Failed records that were logged because of errors.log.enable",
        ),
        (
            *("task_error", "total_retries", "total_retries"),
            "Retried operations: transforms and conversions of a record, polls and puts",
        ),
        (
            *("task_error", "deadletterqueue_produce_requests", "deadletterqueue_produce_requests"),
            "Records sent to the dead letter queue",
        ),
        (
            *("task_error", "deadletterqueue_produce_failures", "deadletterqueue_produce_failures"),
            "Records that could not be written to the dead letter queue",
        ),
        (
            *("task_error", "last_error_timestamp", "last_error_timestamp"),
            "Time of the last failed record in ms since 1970, or 0",
        ),
    )
]
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_ONLY_TYPE = {"source_task": "source", "sink_task": "sink"}


def named_values(task: TaskMetrics, connector_type: str) -> dict[str, float]:
    """Return the values of a task by the names of their attributes in Kafka, and those that the task has registered."""
    names = {
        attribute.name.replace("_", "-"): attribute.value
        for attribute in _ATTRIBUTES
        if _ONLY_TYPE.get(attribute.group) in (None, connector_type)
    }
    found = {name: task.values[value] for name, value in names.items() if value in task.values}
    return found | {metric.name: metric.value for metric in task.registered}


def render(tasks: Sequence[TaskMetrics], types: Mapping[str, str]) -> bytes:
    """Return the metrics of the tasks. `types` maps the name of each connector to its type, source or sink."""
    lines: list[str] = []
    labelled = [(_labels(connector=task.connector, task=str(task.task)), task) for task in tasks]
    for attribute in _ATTRIBUTES:
        only_type = _ONLY_TYPE.get(attribute.group)
        samples = [
            f"{labels} {_format(value)}"
            for labels, task in labelled
            if (value := task.values.get(attribute.value)) is not None
            and only_type in (None, types.get(task.connector))
        ]
        for name in attribute.names:
            lines += _family(name, attribute.type, attribute.text, samples)
    lines += _registered_lines(labelled)
    lines += _lag_lines(tasks)
    return "".join(f"{line}\n" for line in lines).encode()


def _registered_lines(labelled: Sequence[tuple[str, TaskMetrics]]) -> list[str]:
    """Return the metrics that tasks have registered. In Kafka, plug-ins register metrics of the type `plugins`.

    If tasks have registered a name with different types or texts, those of the first task are shown.
    """
    found: dict[str, tuple[str, str, list[str]]] = {}
    for labels, task in labelled:
        for metric in task.registered:
            name = "kafka_connect_plugins_" + _NOT_IN_NAMES.sub("_", metric.name)
            samples = found.setdefault(name, (metric.type, metric.doc, []))[2]
            samples.append(f"{labels} {_format(metric.value)}")
    return [line for name, (type_, doc, samples) in found.items() for line in _family(name, type_, doc, samples)]


def _lag_lines(tasks: Iterable[TaskMetrics]) -> list[str]:
    """Return the lags of sinks: the metrics of their consumers in Kafka.

    jmx_exporter's rules name the label of the client id `clientId`. Micrometer gives the metrics the same names, but
    names this label `client_id`, as Confluent does.
    """
    lines: list[str] = []
    for group, id_labels in (("fetch_manager", ("clientId", "client_id")), ("consumer_fetch_manager_metrics", None)):
        current: list[str] = []
        averages: list[str] = []
        maxima: list[str] = []
        for task in tasks:
            client = dict.fromkeys(id_labels or ("client_id",), task.client_id)
            for lag in task.lags:
                labels = _labels(**client, topic=lag.topic, partition=str(lag.partition))
                current.append(f"{labels} {_format(lag.lag)}")
                averages.append(f"{labels} {_format(lag.avg)}")
                maxima.append(f"{labels} {_format(lag.max)}")
            if task.lags:
                known = (lag.max for lag in task.lags if not math.isnan(lag.max))
                maxima.append(f"{_labels(**client)} {_format(max(known, default=math.nan))}")
        prefix = f"kafka_consumer_{group}_records_lag"
        lines += _family(prefix, "gauge", "Records of the partition that the task has not received yet", current)
        lines += _family(f"{prefix}_avg", "gauge", "Average of records_lag", averages)
        lines += _family(f"{prefix}_max", "gauge", "Maximum of records_lag, also over all partitions", maxima)
    return lines


def _family(name: str, type_: str, text: str, samples: Iterable[str]) -> list[str]:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} {type_}", *(name + sample for sample in samples)]


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _format(value: float) -> str:
    """Return a number in Prometheus' format."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
