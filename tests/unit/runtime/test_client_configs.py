"""Client configurations: worker keys with prefix override Connect's defaults, and connector overrides override both."""

from __future__ import annotations

from headrace.runtime import client_configs

WORKER = {
    "bootstrap.servers": "h:1",
    "producer.acks": "1",
    "producer.linger.ms": "5",
    "consumer.max.poll.records": "10",
    "security.protocol": "PLAINTEXT",
    "offset.flush.interval.ms": "5",
}


def test_source_producer_properties_combine_worker_and_connector_keys() -> None:
    connector = {"name": "c", "producer.override.linger.ms": "50"}
    properties = client_configs.source_producer_properties(WORKER, connector, "c-0")
    assert properties["bootstrap.servers"] == "h:1"
    assert properties["client.id"] == "connector-producer-c-0"
    assert properties["acks"] == "1"
    assert properties["linger.ms"] == "50"
    assert properties["delivery.timeout.ms"] == "2147483647"


def test_sink_consumer_properties_combine_worker_and_connector_keys() -> None:
    properties = client_configs.consumer_properties(WORKER, {"name": "c"}, "c-1")
    assert properties["group.id"] == "connect-c"
    assert properties["auto.offset.reset"] == "earliest"
    assert properties["enable.auto.commit"] == "false"
    assert properties["max.poll.records"] == "10"
    override = {"name": "c", "consumer.override.group.id": "mine"}
    assert client_configs.consumer_properties(WORKER, override, "c-1")["group.id"] == "mine"


def test_admin_client_uses_unprefixed_worker_keys() -> None:
    properties = client_configs.admin_properties(WORKER, {"name": "c"}, "c-0")
    assert properties["security.protocol"] == "PLAINTEXT"
    assert "offset.flush.interval.ms" not in properties
