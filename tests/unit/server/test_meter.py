"""What is counted of requests and topics stays bounded, whatever clients name and however topics come and go."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from headrace_broker.log.log import AppendInfo
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.metrics.meter import Meter, api_name

METADATA = int(ApiKey.METADATA)


def metered(**handlers: Any) -> tuple[Meter, Any]:
    """A meter, and the router that it watches."""
    routes = {METADATA: SimpleNamespace(versions=(0, 13))}
    given = {"handle": lambda connection, frame: None, "handler_of": None, "routes_of": lambda listener: routes}
    router: Any = SimpleNamespace(**given | handlers)
    return Meter(router), router


def test_what_is_not_served_counts_as_one() -> None:
    """A client may name every number there is, and each would be a family of samples."""
    meter, router = metered()
    connection = SimpleNamespace(listener="PLAINTEXT")
    for number in range(-1000, 1000):
        router.handle(connection, memoryview(struct.pack(">hh", number, 0)))
        router.handle(connection, memoryview(struct.pack(">hh", METADATA, number)))
    assert {api_name(key) for key in meter.requests} == {"Metadata", "unknown"}
    assert meter.requests[METADATA].by_version == dict.fromkeys(range(14), 1) | {0: 2, -1: 1986}


def test_topics_that_are_gone_count_in_the_sum_only() -> None:
    held: dict[str, Any] = {}
    broker: Any = SimpleNamespace(
        append=lambda partition, records, origin: AppendInfo(0, 4, -1, 0),
        read=None,
        partitions=SimpleNamespace(by_name=held),
    )
    meter, _ = metered()
    meter.watch(broker)
    for number in range(1000):
        name = f"t{number}"
        held[name] = {}
        broker.append(SimpleNamespace(topic=name), memoryview(b"1234567"))
        if number != 500:
            del held[name]
    assert len(meter.topics) <= 200
    meter.forget_topics()
    assert list(meter.topics) == ["t500"]
    assert meter.gone_topics.messages_in + meter.topics["t500"].messages_in == 5000
    assert meter.gone_topics.bytes_in == 7 * 999
