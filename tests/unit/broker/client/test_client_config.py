from __future__ import annotations

import pytest

from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientConfigError
from headrace_broker.records.compression import Compression

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_client_config_defaults_match_the_java_client() -> None:
    producer = ClientConfig.from_properties(SERVERS, "producer")
    assert (producer.acks, producer.linger_ms, producer.batch_size, producer.max_in_flight) == (-1, 5, 16384, 5)
    assert producer.enable_idempotence
    assert producer.delivery_timeout_ms == 120_000
    consumer = ClientConfig.from_properties(SERVERS, "consumer")
    assert consumer.assignment_strategies == ("range", "cooperative-sticky")
    assert (consumer.auto_offset_reset, consumer.session_timeout_ms) == ("latest", 45_000)


def test_client_config_values_are_parsed_by_type() -> None:
    config = ClientConfig.from_properties(
        {
            "bootstrap.servers": "a:1, [::1]:2 ,PLAINTEXT://b:3",
            "compression.type": "ZSTD",
            "acks": "1",
            "linger.ms": " 0 ",
            "client.id": "me",
        },
        "producer",
    )
    assert config.bootstrap_servers == (("a", 1), ("::1", 2), ("b", 3))
    assert config.compression is Compression.ZSTD
    assert (config.acks, config.linger_ms, config.client_id) == (1, 0, "me")
    assert not config.enable_idempotence
    assert any("enable.idempotence: disabled" in warning for warning in config.warnings)


def test_assignors_can_be_set_by_java_class_name() -> None:
    config = ClientConfig.from_properties(
        {**SERVERS, "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RoundRobinAssignor, sticky"},
        "consumer",
    )
    assert config.assignment_strategies == ("roundrobin", "sticky")


@pytest.mark.parametrize("value", ["consumer", "CONSUMER"])
def test_consumer_with_the_new_group_protocol_is_refused(value: str) -> None:
    with pytest.raises(ClientConfigError, match=r"group.protocol=consumer: not supported yet; remove the key"):
        ClientConfig.from_properties({**SERVERS, "group.protocol": value}, "consumer")
    assert ClientConfig.from_properties({**SERVERS, "group.protocol": "classic"}, "consumer").warnings == ()


def test_all_client_config_errors_are_reported_at_once_with_their_keys() -> None:
    with pytest.raises(ClientConfigError) as caught:
        ClientConfig.from_properties(
            {
                "bootstrap.servers": "nowhere",
                "acks": "2",
                "linger.ms": "soon",
                "batch.size": "-1",
                "security.protocol": "SASL_SSL",
                "transactional.id": "x",
            },
            "producer",
        )
    text = "\n".join(caught.value.errors)
    assert len(caught.value.errors) == 6
    for part in (
        "'nowhere' is not host:port",
        "acks=2",
        "linger.ms=soon",
        "batch.size=-1",
        "SASL_SSL",
        "transactional",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("properties", "part"),
    [
        ({"enable.idempotence": "true", "acks": "1"}, "acks must be all"),
        ({"max.in.flight.requests.per.connection": "6"}, "at most 5"),
        ({"delivery.timeout.ms": "10", "request.timeout.ms": "20"}, "at least linger.ms"),
    ],
)
def test_conflicting_producer_configs_are_rejected(properties: dict[str, str], part: str) -> None:
    with pytest.raises(ClientConfigError, match=part):
        ClientConfig.from_properties({**SERVERS, **properties}, "producer")


def test_client_config_keys_without_effect_are_reported_as_warnings() -> None:
    config = ClientConfig.from_properties(
        {**SERVERS, "linger.mss": "1", "key.serializer": "X", "group.id": "g", "sasl.mechanism": "PLAIN"}, "producer"
    )
    warnings = {warning.partition(":")[0]: warning for warning in config.warnings}
    assert "did you mean linger.ms?" in warnings["linger.mss"]
    assert "has no effect" in warnings["key.serializer"]
    assert "not a producer key" in warnings["group.id"]
    assert "has no effect" in warnings["sasl.mechanism"]


@pytest.mark.parametrize("text", ["earliest", "latest", "none", "by_duration:P1DT2H"])
def test_valid_auto_offset_reset_values_are_accepted(text: str) -> None:
    assert ClientConfig.from_properties({**SERVERS, "auto.offset.reset": text}, "consumer").auto_offset_reset == text


def test_invalid_auto_offset_reset_is_rejected() -> None:
    with pytest.raises(ClientConfigError, match=r"auto\.offset\.reset=begin"):
        ClientConfig.from_properties({**SERVERS, "auto.offset.reset": "begin"}, "consumer")
