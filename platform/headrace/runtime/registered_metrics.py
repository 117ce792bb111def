"""The metrics that a task registers itself with `context.metrics`."""

from __future__ import annotations

import re
import threading

from headrace.runtime.messages import MetricType, RegisteredMetric

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


class _Metric:
    """A gauge or counter of a task. Callable from any thread."""

    def __init__(self, name: str, type_: MetricType, doc: str) -> None:
        self.name = name
        self.type: MetricType = type_
        self.doc = doc
        self.value = 0.0
        self._lock = threading.Lock()

    def set(self, value: float) -> None:
        """Set the value of a gauge."""
        self.value = float(value)

    def add(self, amount: float = 1) -> None:
        """Increase a counter. Raises ValueError if the amount is negative."""
        if amount < 0:
            raise ValueError(f"metric {self.name}: a counter cannot decrease by {-amount}")
        with self._lock:
            self.value += float(amount)


class RegisteredMetrics:
    """The metrics of one task: see `headrace.api.record_access.TaskMetrics`."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}
        self._lock = threading.Lock()

    def gauge(self, name: str, doc: str) -> _Metric:
        """Return the gauge with that name. Raises ValueError for an invalid name."""
        return self._register(name, "gauge", doc)

    def counter(self, name: str, doc: str) -> _Metric:
        """Return the counter with that name. Raises ValueError for an invalid name."""
        return self._register(name, "counter", doc)

    def current(self) -> list[RegisteredMetric]:
        """Return all metrics in the order of their registration."""
        with self._lock:
            metrics = list(self._metrics.values())
        return [RegisteredMetric(each.name, each.type, each.doc, each.value) for each in metrics]

    def _register(self, name: str, type_: MetricType, doc: str) -> _Metric:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"metric {name!r}: a name consists of letters, digits, hyphens, dots and underscores")
        with self._lock:
            metric = self._metrics.setdefault(name, _Metric(name, type_, doc))
        if metric.type != type_:
            raise ValueError(f"metric {name}: it is already registered as a {metric.type}")
        return metric
