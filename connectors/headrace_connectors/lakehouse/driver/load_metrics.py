"""The metrics of a lakehouse task, as `/metrics` and the REST API show them."""

from __future__ import annotations

import time

from headrace.api.record_access import TaskMetrics
from headrace_connectors.lakehouse.driver.batch_loader import LoadedBatch


class LoadMetrics:
    """Registers the metrics and updates them before and after each micro-batch."""

    def __init__(self, metrics: TaskMetrics) -> None:
        self._rows = metrics.counter("rows-total", "Rows that the task has committed to tables.")
        self._batches = metrics.counter("batches-total", "Micro-batches that the task has committed.")
        self._bad = metrics.counter("bad-records-total", "Records that could not become rows and were skipped.")
        self._rate = metrics.gauge("rows-per-second", "Rows per second in the last micro-batch.")
        self._duration = metrics.gauge("batch-duration-ms", "Duration of the last micro-batch.")
        self._commit = metrics.gauge("batch-commit-ms", "Duration of the commits of the last micro-batch.")
        self._lag = metrics.gauge("records-lag", "Offsets that are not in the tables yet, over all partitions.")
        self._freshness = metrics.gauge(
            "freshness-ms",
            "Age of the newest record of the last micro-batch when it was committed, or 0 if nothing remains to load.",
        )

    def loaded(self, batch: LoadedBatch, lag: int) -> None:
        """Update the metrics after a micro-batch. `lag` is the number of remaining offsets."""
        rows, duration_s = sum(batch.rows.values()), batch.read_s + batch.commit_s
        self._rows.add(rows)
        self._batches.add()
        self._bad.add(batch.bad_count)
        self._rate.set(rows / max(duration_s, 1e-3))
        self._duration.set(duration_s * 1000)
        self._commit.set(batch.commit_s * 1000)
        self._lag.set(lag)
        if batch.newest_ms is not None:
            self._freshness.set(max(0.0, time.time() * 1000 - batch.newest_ms))

    def planned(self, lag: int) -> None:
        """Update the metrics before a micro-batch. `lag` is the number of offsets that are not in the tables."""
        self._lag.set(lag)
        if lag == 0:
            self._freshness.set(0)
