"""Builds a page in Prometheus' text format 0.0.4."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SAMPLES_AT_ONCE = 100
_QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class LatencySamples(Protocol):
    """Measured latencies: their number since the start, and the most recent latencies in ms."""

    count: int

    @property
    def last_ms(self) -> Iterable[float]: ...


class MetricsPage:
    """Metric families with their samples, in the order in which they are added."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        """Start a metric family; its samples follow.

        `kind` is counter, gauge, summary or untyped. `text` is the help text.
        """
        self.lines.append(f"# HELP {name} {text}")
        self.lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, value: float, /, **labels: object) -> None:
        """Add a sample to the current family."""
        self.lines.append(f"{name}{_labels(labels)} {value}")

    async def samples(self, name: str, samples: Iterable[tuple[float, Mapping[str, object]]]) -> None:
        """Add many samples (value, labels) to the current family.

        The event loop does other work after each hundred samples, so `samples` must not iterate over a dictionary that
        other code may change.
        """
        for number, (value, labels) in enumerate(samples, 1):
            self.sample(name, value, **labels)
            if number % _SAMPLES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def gauge(self, name: str, text: str, value: float, /, **labels: object) -> None:
        """Add a gauge with one sample."""
        self.family(name, "gauge", text)
        self.sample(name, value, **labels)

    def counter(self, name: str, text: str, value: float) -> None:
        """Add a counter with one sample."""
        self.family(name, "counter", text)
        self.sample(name, value)

    def untyped(self, name: str, text: str, value: float) -> None:
        """Add an untyped sample. Used for counters whose names lack the suffix `_total` that Prometheus requires."""
        self.family(name, "untyped", text)
        self.sample(name, value)

    def summary(self, name: str, text: str, latencies: LatencySamples) -> None:
        """Add the summary `name` with the help text `text` and the quantiles of `latencies` in ms."""
        self.family(name, "summary", f"{text} in ms, over the last 1000")
        self.quantiles(name, latencies)

    def quantiles(self, name: str, latencies: LatencySamples, **labels: object) -> None:
        """Add the quantiles and the count of one summary to the current family."""
        ordered = sorted(latencies.last_ms)
        for quantile in _QUANTILES if ordered else ():
            value = ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]
            self.sample(name, round(value, 4), **labels, quantile=quantile)
        self.sample(f"{name}_count", latencies.count, **labels)

    def text(self) -> bytes:
        """Return the encoded page."""
        return ("\n".join(self.lines) + "\n").encode()


def _labels(labels: dict[str, object]) -> str:
    """Return the labels with a comma after the last one, as in jmx_exporter: kafka-ui cannot parse it otherwise."""
    if not labels:
        return ""
    return "{" + "".join(f'{name}="{str(value).translate(_ESCAPES)}",' for name, value in labels.items()) + "}"
