"""Tests of Meter: the number of request and topic metrics stays limited, whatever requests clients send."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from headrace_broker.log.log import AppendInfo
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.metrics.meter import Meter, api_name

METADATA = int(ApiKey.METADATA)


def metered(**handlers: Any) -> tuple[Meter, Any]:
    """Return a meter and the fake router that it measures. `handlers` replaces attributes of the router."""
    routes = {METADATA: SimpleNamespace(versions=(0, 13))}
    given = {"handle": lambda connection, frame: None, "handler_of": None, "routes_for": lambda listener: routes}
    router: Any = SimpleNamespace(**given | handlers)
    return Meter(router), router


def test_unsupported_apis_and_versions_share_one_metric() -> None:
    """A client may send any number as API key or version. A metric for each number would need unlimited memory."""
    meter, router = metered()
    connection = SimpleNamespace(listener="PLAINTEXT")
    for number in range(-1000, 1000):
        router.handle(connection, memoryview(struct.pack(">hh", number, 0)))
        router.handle(connection, memoryview(struct.pack(">hh", METADATA, number)))
    assert {api_name(key) for key in meter.requests} == {"Metadata", "unknown"}
    assert meter.requests[METADATA].by_version == dict.fromkeys(range(14), 1) | {0: 2, -1: 1986}


def test_meter_adds_up_the_metrics_of_deleted_topics_in_one_total() -> None:
    hosted: dict[str, Any] = {}
    broker: Any = SimpleNamespace(
        append=lambda partition, records, origin, check: AppendInfo(0, 4, -1, 0),
        read=None,
        partitions=SimpleNamespace(by_name=hosted),
    )
    meter, _ = metered()
    meter.instrument_broker(broker)
    for number in range(1000):
        name = f"t{number}"
        hosted[name] = {}
        broker.append(SimpleNamespace(topic=name), memoryview(b"1234567"))
        if number != 500:
            del hosted[name]
    assert len(meter.topics) <= 200
    meter.fold_deleted_topics()
    assert list(meter.topics) == ["t500"]
    assert meter.deleted_topics.messages_in + meter.topics["t500"].messages_in == 5000
    assert meter.deleted_topics.bytes_in == 7 * 999
