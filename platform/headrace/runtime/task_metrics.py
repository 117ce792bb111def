"""The measurements of one task in the worker, from the messages of the task. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.runtime import messages
from headrace.runtime.record_lags import PartitionLag
from headrace.runtime.state_times import StateTimes


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """The measurements of a task since its start. `client_id` is that of the sink task's consumer."""

    connector: str
    task: int
    values: Mapping[str, float]
    client_id: str = ""
    lags: Sequence[PartitionLag] = ()
    registered: Sequence[messages.RegisteredMetric] = ()
    """The metrics that the task has registered itself."""


class TaskMeter:
    """Collects the measurements of one task. They remain after the task has failed, as in Kafka Connect.

    The rates, lags and other current values of a failed task are removed, because the task no longer updates them.
    """

    def __init__(self, connector: str, task: int) -> None:
        self._connector = connector
        self._task = task
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._client_id = ""
        self._lags: Sequence[PartitionLag] = ()
        self._registered: Sequence[messages.RegisteredMetric] = ()
        self._states = StateTimes()
        self._has_failed = False

    def handle(self, message: messages.CountersReported | messages.LagsReported) -> None:
        """Store the values that the task has reported."""
        match message:
            case messages.CountersReported(_, counters, gauges, registered):
                self._counters, self._gauges, self._registered = counters, gauges, registered
            case messages.LagsReported(_, client_id, lags):
                self._client_id, self._lags = client_id, lags

    def change_state(self, state: str, now_s: float) -> None:
        """The task is in this state from now on."""
        self._states.change(state, now_s)
        self._has_failed = state == "FAILED"

    def metrics(self, now_s: float) -> TaskMetrics:
        """Return the current measurements."""
        values = {
            **self._counters,
            "running_ratio": self._states.ratio("RUNNING", now_s),
            "pause_ratio": self._states.ratio("PAUSED", now_s),
        }
        registered = self._registered
        if self._has_failed:
            counters = [metric for metric in registered if metric.type == "counter"]
            return TaskMetrics(self._connector, self._task, values, registered=counters)
        values |= self._gauges
        return TaskMetrics(self._connector, self._task, values, self._client_id, self._lags, registered)
