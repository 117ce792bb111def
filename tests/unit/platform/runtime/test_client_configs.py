"""Tests of client configurations.

The worker's prefixed keys override Connect's defaults. A connector's client overrides take precedence
over the worker's keys and over the defaults.
"""

from __future__ import annotations

import pytest

from headrace.runtime import client_configs
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientConfigError

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


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("acks", "1", "acks must be all"),
        ("retries", "0", "retries must not be 0"),
        ("max.in.flight.requests.per.connection", "6", "max.in.flight.requests.per.connection must be at most 5"),
    ],
)
def test_idempotence_is_disabled_by_conflicting_producer_settings_unless_it_is_enabled_explicitly(
    key: str, value: str, rule: str
) -> None:
    worker = {"bootstrap.servers": "h:1"}
    connector = {"name": "c", f"producer.override.{key}": value}
    for properties in (
        client_configs.source_producer_properties(worker, connector, "c-0"),
        client_configs.source_producer_properties(worker | {f"producer.{key}": value}, {"name": "c"}, "c-0"),
    ):
        config = client_configs.parse_producer(properties)
        assert not config.enable_idempotence
        assert config.warnings == (f"enable.idempotence: disabled; for idempotence, {rule}",)
    connector["producer.override.enable.idempotence"] = "true"
    properties = client_configs.source_producer_properties(worker, connector, "c-0")
    with pytest.raises(ClientConfigError, match=f"enable.idempotence=true: {rule}"):
        client_configs.parse_producer(properties)


def test_sink_consumer_properties_combine_worker_and_connector_keys() -> None:
    properties = client_configs.consumer_properties(WORKER, {"name": "c"}, "c-1")
    assert properties["group.id"] == "connect-c"
    assert properties["auto.offset.reset"] == "earliest"
    assert properties["enable.auto.commit"] == "false"
    assert properties["max.poll.records"] == "10"
    assert properties["fetch.max.bytes"] == "8388608"
    override = {"name": "c", "consumer.override.group.id": "mine", "consumer.override.fetch.max.bytes": "52428800"}
    overridden = client_configs.consumer_properties(WORKER, override, "c-1")
    assert (overridden["group.id"], overridden["fetch.max.bytes"]) == ("mine", "52428800")


def test_task_warns_about_interceptors_of_the_connector_and_not_about_those_of_the_worker() -> None:
    interceptors = {
        "interceptor.classes": "io.confluent.monitoring.clients.interceptor.MonitoringProducerInterceptor",
        "confluent.monitoring.interceptor.bootstrap.servers": "h:1",
    }
    worker = WORKER | {f"{kind}.{key}": text for kind in ("producer", "consumer") for key, text in interceptors.items()}
    producer = client_configs.source_producer_properties({**worker, "producer.acks": "all"}, {"name": "c"}, "c-0")
    consumer = client_configs.consumer_properties(worker, {"name": "c"}, "c-0")
    assert client_configs.parse_producer(producer).warnings == ()
    assert ClientConfig.from_properties(consumer, kind="consumer").warnings == ()
    override = {"name": "c", "producer.override.interceptor.classes": "com.example.X"}
    (warning,) = client_configs.parse_producer(
        client_configs.source_producer_properties({**worker, "producer.acks": "all"}, override, "c-0")
    ).warnings
    assert warning.startswith("interceptor.classes: ignored")


def test_admin_client_properties_contain_unprefixed_client_keys_of_the_worker() -> None:
    properties = client_configs.admin_properties(WORKER, {"name": "c"}, "c-0")
    assert properties["security.protocol"] == "PLAINTEXT"
    assert "offset.flush.interval.ms" not in properties
