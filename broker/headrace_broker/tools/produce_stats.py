"""Computes the statistics of kafka-producer-perf-test: throughput and latency per interval and in total.

This module does no I/O.
"""

from __future__ import annotations

from array import array

_SAMPLES_MAX = 500_000
_MB = 1024 * 1024
_PERCENTILES = (0.5, 0.95, 0.99, 0.999)


class FailureCounts:
    """Counts failed records by error type, and formats the first error of each type and a summary line."""

    def __init__(self) -> None:
        self.records = 0
        self._by_kind: dict[str, int] = {}

    def add(self, records: int, error: BaseException) -> list[str]:
        """Add `records`, the number of records that failed with `error`; return the lines to print."""
        code = getattr(error, "code", None)
        kind = type(error).__name__ if code is None else code.name
        lines = [] if kind in self._by_kind else [f"{error} (the tool only counts further errors of this type)"]
        self._by_kind[kind] = self._by_kind.get(kind, 0) + records
        self.records += records
        return lines

    def summary(self, records: int) -> list[str]:
        """Return the summary line, or no line if no record failed. `records` is the number of sent records."""
        kinds = ", ".join(f"{count} with {kind}" for kind, count in self._by_kind.items())
        return [f"{self.records} of {records} records failed: {kinds}"] if kinds else []


class Window:
    """The record count, bytes and latencies of one interval."""

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms
        self.records = 0
        self.size_bytes = 0
        self.latency_sum_ms = 0
        self.latency_max_ms = 0

    def add(self, records: int, size_bytes: int, latency_ms: int) -> None:
        """Add records that were acknowledged together: their number, their total size and their latency."""
        self.records += records
        self.size_bytes += size_bytes
        self.latency_sum_ms += latency_ms * records
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)

    def rates(self, now_ms: float) -> tuple[float, float]:
        """Return (records per second, MB per second) from the start of the interval to `now_ms`."""
        elapsed_s = max(now_ms - self.start_ms, 1) / 1000
        return self.records / elapsed_s, self.size_bytes / elapsed_s / _MB

    @property
    def latency_average_ms(self) -> float:
        """The mean latency, or 0 if there are no records."""
        return self.latency_sum_ms / self.records if self.records else 0.0


class ProduceStats:
    """Counts acknowledged records, and formats a line for each reporting interval."""

    def __init__(
        self, records: int, start_ms: float, reporting_interval_ms: int, *, is_steady_state: bool = False
    ) -> None:
        self._sampling = max(1, -(-records // _SAMPLES_MAX))
        self._latencies = array("i")
        self._skip = 0
        self._total = Window(start_ms)
        self._window = Window(start_ms)
        self._interval_ms = reporting_interval_ms
        self._is_steady_state = is_steady_state
        self._has_reported = False
        self.is_quiet = False

    def add_acknowledged(self, records: int, size_bytes: int, latency_ms: int, now_ms: float) -> list[str]:
        """Count records that were sent and acknowledged together; return the lines to print."""
        self._total.add(records, size_bytes, latency_ms)
        self._window.add(records, size_bytes, latency_ms)
        samples, self._skip = divmod(self._skip + records, self._sampling)
        self._latencies.extend([latency_ms] * samples)
        if now_ms - self._window.start_ms < self._interval_ms:
            return []
        lines = ["In steady state."] if self._is_steady_state and not self._has_reported else []
        if not self.is_quiet:
            lines.append(self._window_line(now_ms))
        self._has_reported = True
        self._window = Window(now_ms)
        return lines

    def _window_line(self, now_ms: float) -> str:
        window = self._window
        records_s, mb_s = window.rates(now_ms)
        return (
            f"{window.records} records sent, {records_s:.1f} records/sec ({mb_s:.2f} MB/sec), "
            f"{window.latency_average_ms:.1f} ms avg latency, {window.latency_max_ms:.1f} ms max latency."
        )

    def total_line(self, now_ms: float) -> str:
        """Return the summary line of the whole test."""
        total = self._total
        records_s, mb_s = total.rates(now_ms)
        latencies = sorted(self._latencies) or [0]
        p50, p95, p99, p999 = (
            latencies[min(int(share * len(latencies)), len(latencies) - 1)] for share in _PERCENTILES
        )
        return (
            f"{total.records}{' steady state' if self._is_steady_state else ''} records sent, "
            f"{records_s:f} records/sec ({mb_s:.2f} MB/sec), {total.latency_average_ms:.2f} ms avg latency, "
            f"{total.latency_max_ms:.2f} ms max latency, {p50} ms 50th, {p95} ms 95th, {p99} ms 99th, {p999} ms 99.9th."
        )
