"""Tests that TimestampConverter parses the same names of time zones as Kafka Connect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.data.java_dates.zone_names import zone_names
from support.connect_oracle import ConnectOracle, Request, connect_oracle, run_headrace, unavailable_reason

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def oracle() -> Iterator[ConnectOracle]:
    """A JVM that runs the classes of Kafka Connect for all tests of this module."""
    with connect_oracle() as running:
        yield running


@pytest.mark.parametrize("date", ["2026-01-15", "2026-07-15"])
def test_zone_names_are_parsed_as_in_kafka_connect(oracle: ConnectOracle, date: str) -> None:
    config = {"target.type": "unix", "format": "yyyy-MM-dd HH:mm:ss z"}
    java_class = "org.apache.kafka.connect.transforms.TimestampConverter$Value"
    for name in [*zone_names(), *map(str.swapcase, zone_names())]:
        case = [False, "t", 0, None, None, None, ["string", f"{date} 10:11:12 {name}"], 0, []]
        # A request contains only one text, because Java's next text would be parsed with the zone of the previous one.
        request = Request("transform", java_class, config, [case])
        oracle.send(request)
        assert run_headrace(request) == oracle.receive(request), name
