"""Tests of the fifteen-minute rates of produced and fetched bytes."""

from __future__ import annotations

import asyncio
import re
from math import exp
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace_broker.server.metrics.byte_rates import ByteRates, FifteenMinuteRate
from headrace_broker.server.metrics.meter import TopicMetrics
from headrace_broker.server.metrics.page import MetricsPage


def test_rate_equals_the_rate_of_yammer_metrics() -> None:
    """The values are those of Yammer's test of its fifteen-minute average: 3 events, then none."""
    rate = FifteenMinuteRate(100.0)
    assert rate.update(3, 104.9) == 0
    assert rate.update(3, 105.0) == pytest.approx(0.6)
    assert rate.update(3, 165.0) == pytest.approx(0.56130419)
    assert rate.update(3, 225.0) == pytest.approx(0.52510399)
    for minute in range(3, 16):
        rate.update(3, 105.0 + 60 * minute)
    assert rate.per_second == pytest.approx(0.22072766)


def test_constant_rate_does_not_depend_on_the_interval_of_the_updates() -> None:
    frequent, rare = FifteenMinuteRate(0.0), FifteenMinuteRate(0.0)
    for second in range(1, 601):
        frequent.update(1000 * second, second)
    rare.update(600_000, 600.0)
    assert frequent.per_second == pytest.approx(1000)
    assert rare.per_second == pytest.approx(1000)
    for second in range(601, 901):
        frequent.update(600_000, second)
    rare.update(600_000, 900.0)
    assert frequent.per_second == pytest.approx(rare.per_second) == pytest.approx(1000 * exp(-300 / 900))


def topic(bytes_in: int, bytes_out: int = 0) -> TopicMetrics:
    metrics = TopicMetrics()
    metrics.bytes_in, metrics.bytes_out = bytes_in, bytes_out
    return metrics


def scrape(rates: ByteRates, now_s: float, deleted: int = 0, **topics: TopicMetrics) -> dict[tuple[str, ...], float]:
    """Return the rates by the values of the labels. Parse them with Prometheus' client and as kafka-ui does."""
    page = MetricsPage()
    meter: Any = SimpleNamespace(topics=topics, deleted_topics=topic(deleted))
    asyncio.run(rates.add_to(page, meter, now_s))
    text = page.text().decode()
    (family,) = text_string_to_metric_families(text)
    assert (family.type, family.name) == ("gauge", "kafka_server_BrokerTopicMetrics_FifteenMinuteRate")
    found = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    assert found == {tuple(labels.values()): value for labels, value in map(parsed_by_kafka_ui, text.splitlines()[2:])}
    return found


def parsed_by_kafka_ui(line: str) -> tuple[dict[str, str], float]:
    """Parse a sample as the releases of kafka-ui up to 1.3 do: they split the part after the name at commas."""
    match = re.fullmatch(r"(\w+)[ \t]*\{*(.*)\}*[ \t]+(\d+\.?\d+)", line)
    assert match is not None, line
    pairs = [pair.split("=") for pair in match[2].split(",") if pair.count("=") == 1]
    return {name.strip(): value.strip().replace('"', "") for name, value in pairs}, float(match[3])


def test_page_has_the_rates_of_the_broker_and_of_each_topic() -> None:
    rates = ByteRates(0.0)
    assert scrape(rates, 10.0, a=topic(1000, 500)) == {
        ("BytesInPerSec",): 100,
        ("BytesInPerSec", "a"): 100,
        ("BytesOutPerSec",): 50,
        ("BytesOutPerSec", "a"): 50,
    }


def test_rate_of_a_new_topic_begins_at_the_previous_request_of_the_page() -> None:
    rates = ByteRates(0.0)
    scrape(rates, 100.0)
    assert scrape(rates, 110.0, a=topic(1000))["BytesInPerSec", "a"] == 100


def test_rate_of_the_broker_includes_deleted_topics() -> None:
    rates = ByteRates(0.0)
    scrape(rates, 10.0, a=topic(1000), b=topic(1000))
    found = scrape(rates, 20.0, deleted=1000, b=topic(2000))
    assert ("BytesInPerSec", "a") not in found
    assert found["BytesInPerSec",] == pytest.approx(100 + 100 * exp(-10 / 900), abs=1e-4)
