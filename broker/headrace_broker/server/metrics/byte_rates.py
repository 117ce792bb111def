"""The rates at which the broker receives and sends records, as in Kafka's BrokerTopicMetrics.

The metric has the name that jmx_exporter gives it without rules. kafka-ui reads it under this name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from headrace_broker.server.metrics.meter import Meter, TopicMetrics
from headrace_broker.server.metrics.page import MetricsPage

_NAME = "kafka_server_BrokerTopicMetrics_FifteenMinuteRate"
_TICK_S = 5.0
_PERIOD_S = 15 * 60.0
_METERS: tuple[tuple[str, Callable[[TopicMetrics], int]], ...] = (
    ("BytesInPerSec", lambda item: item.bytes_in),
    ("BytesOutPerSec", lambda item: item.bytes_out),
)


class FifteenMinuteRate:
    """The exponentially weighted moving average of a counter's rate per second.

    As in Kafka (Yammer metrics), the rate changes at most every 5 seconds, and the first rate is not weighted. Kafka
    samples the counter every 5 seconds. Here, the rate between two calls of `update` is assumed to be constant.
    """

    __slots__ = ("_count", "_updated_s", "per_second")

    def __init__(self, now_s: float) -> None:
        self.per_second = 0.0
        self._count: int | None = None
        self._updated_s = now_s

    def update(self, count: int, now_s: float) -> float:
        """Return the rate. `count` is the current value of the counter, which was 0 when this object was created."""
        passed_s = now_s - self._updated_s
        if passed_s >= _TICK_S:
            rate = (count - (self._count or 0)) / passed_s
            weight = 0.0 if self._count is None else exp(-passed_s / _PERIOD_S)
            self.per_second = rate + weight * (self.per_second - rate)
            self._count, self._updated_s = count, now_s
        return self.per_second


class ByteRates:
    """The rates of all topics together, and of each topic.

    They are updated when the page is requested, so that the broker spends no time on them otherwise.
    """

    def __init__(self, now_s: float) -> None:
        self._of_broker = [FifteenMinuteRate(now_s) for _ in _METERS]
        self._of_topics: dict[str, list[FifteenMinuteRate]] = {}
        self._updated_s = now_s

    async def add_to(self, page: MetricsPage, meter: Meter, now_s: float) -> None:
        """Update the rates and add them to the page."""
        for topic in self._of_topics.keys() - meter.topics.keys():
            del self._of_topics[topic]
        for topic in meter.topics.keys() - self._of_topics.keys():  # its first record came after the last update
            self._of_topics[topic] = [FifteenMinuteRate(self._updated_s) for _ in _METERS]
        self._updated_s = now_s
        topics = [(topic, metrics, self._of_topics[topic]) for topic, metrics in meter.topics.items()]
        page.family(_NAME, "gauge", "Moving average of the bytes per second that are produced or fetched by consumers")
        for index, (name, count_of) in enumerate(_METERS):
            total = sum((count_of(metrics) for metrics in meter.topics.values()), count_of(meter.deleted_topics))
            page.sample(_NAME, round(self._of_broker[index].update(total, now_s), 4), name=name)
            await page.samples(
                _NAME,
                (
                    (round(rates[index].update(count_of(metrics), now_s), 4), {"name": name, "topic": topic})
                    for topic, metrics, rates in topics
                ),
            )
