"""Tests of BrokerConfig: Kafka's keys and defaults, reports of all errors at once, and warnings about unknown keys."""

from __future__ import annotations

import pytest

from headrace_broker.server.config import KNOWN_KEYS, BrokerConfig, ConfigError
from headrace_broker.server.main import run
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.request_memory import DEFAULT_BYTES_MAX, request_memory_limit


def parse(**properties: str) -> BrokerConfig:
    """Parse `properties`. An underscore in the name of an argument stands for a dot in the configuration key."""
    return BrokerConfig.from_properties(
        {"node.id": "1"} | {key.replace("_", "."): value for key, value in properties.items()}
    )


def errors_of(**properties: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(**properties)
    return caught.value.errors


def test_config_defaults_equal_kafkas_defaults() -> None:
    config = parse()
    assert config.auto_create_topics_enable
    assert config.num_partitions == 1
    assert config.offsets_topic_num_partitions == 50
    assert config.socket_request_max_bytes == 104_857_600
    assert config.connections_max_idle_ms == 600_000
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert config.listeners == (Listener("PLAINTEXT", "", 9092),)
    assert config.log_defaults.retention_ms == 7 * 24 * 3_600_000
    assert config.warnings == ()


def test_kafkas_example_properties_file_is_accepted() -> None:
    config = parse(
        process_roles="broker,controller",
        controller_quorum_bootstrap_servers="localhost:9093",
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        inter_broker_listener_name="PLAINTEXT",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        num_network_threads="3",
        socket_send_buffer_bytes="102400",
        log_dirs="/tmp/a, /tmp/b",
        num_recovery_threads_per_data_dir="1",
        offsets_topic_replication_factor="1",
        log_retention_hours="168",
        log_segment_bytes="1073741824",
        log_retention_check_interval_ms="300000",
    )
    assert config.listeners == (Listener("PLAINTEXT", "", 9092),)
    assert config.advertised_listeners == (Listener("PLAINTEXT", "localhost", 9092),)
    assert config.log_dirs == ("/tmp/a", "/tmp/b")
    assert config.log_defaults.retention_ms == 168 * 3_600_000
    assert config.warnings == (
        "ignored Kafka configs that have no effect in this broker: "
        "num.network.threads, num.recovery.threads.per.data.dir",
    )


def test_all_errors_of_a_broker_configuration_are_reported_together() -> None:
    errors = errors_of(
        num_partitions="many",
        auto_create_topics_enable="maybe",
        socket_request_max_bytes="0",
        listeners="PLAINTEXT:9092",
        log_retention_hours="soon",
        controller_quorum_voters="1@a:1,2@b:1",
        process_roles="broker,zookeeper",
        controller_listener_names="CONTROLLER",
    )
    keys = sorted(error.split("=")[0].split(":")[0].split(" ")[0] for error in errors)
    assert keys == [
        "auto.create.topics.enable",
        "controller.quorum.voters",
        "listeners",
        "log.retention.hours",
        "num.partitions",
        "process.roles",
        "socket.request.max.bytes",
    ]


def test_warning_about_an_unknown_broker_config_suggests_a_similar_key() -> None:
    warnings = parse(num_partition="3", frobnicate="1").warnings
    assert warnings == (
        "num.partition is not a broker config and is ignored; did you mean num.partitions?",
        "frobnicate is not a broker config and is ignored",
    )


def test_broker_config_without_node_id_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"node.id is required.*node.id=1"):
        BrokerConfig.from_properties({})


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        ("PLAINTEXT://:9091,SASL_SSL://:9092", "SASL_SSL"),
        ("FOO://:9092", "listener.security.protocol.map"),
        ("PLAINTEXT://:9092,PLAINTEXT://:9093", "appears twice"),
        ("PLAINTEXT://:99999", "NAME://host:port"),
        ("CONTROLLER://:9093", "no listener for clients"),
    ],
)
def test_invalid_listeners_are_rejected(listeners: str, words: str) -> None:
    (error,) = errors_of(listeners=listeners)
    assert words in error


def test_each_named_listener_has_its_own_advertised_address() -> None:
    config = parse(
        listeners="IN://127.0.0.1:0,OUT://[::1]:9094",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:PLAINTEXT",
        advertised_listeners="OUT://broker.example:19094",
        inter_broker_listener_name="OUT",
    )
    assert config.listeners == (Listener("IN", "127.0.0.1", 0), Listener("OUT", "::1", 9094))
    assert config.advertised_listeners == (Listener("IN", "127.0.0.1", 0), Listener("OUT", "broker.example", 19094))
    (error,) = errors_of(advertised_listeners="PLAINTEXT://0.0.0.0:9092")
    assert "specify a host" in error


def test_inter_broker_listener_name_that_is_not_a_listener_is_rejected() -> None:
    (error,) = errors_of(inter_broker_listener_name="INSIDE")
    assert error == "inter.broker.listener.name=INSIDE: not one of the broker's listeners; use one of PLAINTEXT"


def test_paths_in_log_dirs_are_normalized_and_duplicate_paths_are_rejected() -> None:
    config = parse(log_dirs="/tmp/a/,/tmp//b", metadata_log_dir="//tmp/a//")
    assert (config.log_dirs, config.metadata_dir, config.all_dirs) == (
        ("/tmp/a", "/tmp/b"), "/tmp/a", ("/tmp/a", "/tmp/b"),
    )  # fmt: skip
    assert parse(log_dirs="/").log_dirs == ("/",)
    assert errors_of(log_dirs="/tmp/a,/tmp/a/") == ["log.dirs=/tmp/a,/tmp/a/: a directory is listed twice"]


def test_deprecated_broker_config_names_are_accepted() -> None:
    config = BrokerConfig.from_properties({"broker.id": "7", "log.dir": "/tmp/x"})
    assert (config.node_id, config.log_dirs) == (7, ("/tmp/x",))


def test_every_broker_config_is_described_with_its_effective_value() -> None:
    rows = {
        item.name: (item.value, item.is_set)
        for item in parse(
            num_partitions="3",
            log_retention_hours="2",
            controller_quorum_voters="1@localhost:9093",
            listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        ).described()
    }
    assert rows.keys() == KNOWN_KEYS
    assert rows["num.partitions"] == ("3", True)
    assert rows["auto.create.topics.enable"] == ("true", False)
    assert rows["log.segment.bytes"] == ("1073741824", False)
    assert rows["controller.quorum.voters"] == ("1@localhost:9093", True)
    assert rows["listener.security.protocol.map"] == (
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        False,
    )
    assert rows["advertised.listeners"] == (None, False)
    assert rows["broker.id"] == ("1", True)


@pytest.mark.parametrize(
    ("key", "type_name", "maximum"),
    [
        ("offsets.topic.replication.factor", "SHORT", 2**15 - 1),
        ("group.max.session.timeout.ms", "INT", 2**31 - 1),
        ("replica.socket.timeout.ms", "INT", 2**31 - 1),
        ("metadata.max.retention.bytes", "LONG", 2**63 - 1),
        ("leader.imbalance.check.interval.seconds", "LONG", 2**63 - 1),
    ],
)
def test_broker_config_has_the_type_of_apache_kafka_and_is_limited_to_its_values(
    key: str, type_name: str, maximum: int
) -> None:
    config = parse(**{key: str(maximum)})
    (described,) = [item for item in config.described() if item.name == key]
    assert (described.type.name, described.value) == (type_name, str(maximum))
    assert key in errors_of(**{key: str(maximum + 1)})[0]


def test_default_log_retention_is_described_in_hours_but_not_in_minutes_or_milliseconds() -> None:
    def retention(**properties: str) -> dict[str, tuple[str | None, bool]]:
        rows = parse(**properties).described()
        return {item.name: (item.value, item.is_set) for item in rows if item.name.startswith("log.retention.")}

    defaults = {"log.retention.bytes": ("-1", False), "log.retention.check.interval.ms": ("300000", False)}
    assert retention() == defaults | {
        "log.retention.ms": (None, False),
        "log.retention.minutes": (None, False),
        "log.retention.hours": ("168", False),
    }
    assert retention(log_retention_hours="168")["log.retention.hours"] == ("168", True)
    assert retention(log_retention_ms="5")["log.retention.ms"] == ("5", True)


def test_queued_max_request_bytes_defaults_to_a_share_of_the_machines_memory() -> None:
    assert request_memory_limit(parse(queued_max_request_bytes="5000000").queued_max_request_bytes) == 5_000_000
    by_default = request_memory_limit(parse().queued_max_request_bytes)
    assert 0 < by_default <= DEFAULT_BYTES_MAX
    assert errors_of(queued_max_request_bytes="many") == [
        "queued.max.request.bytes=many: expected a whole number of bytes"
    ]


def test_log_cleaner_configs_have_kafkas_names_and_defaults() -> None:
    config = parse()
    assert config.log_cleaner_enable
    assert config.log_cleaner_backoff_ms == 15_000
    assert config.log_cleaner_dedupe_buffer_size == 128 * 1024 * 1024
    assert config.log_cleaner_io_max_bytes_per_second == 1.7976931348623157e308
    limited = parse(log_cleaner_io_max_bytes_per_second="1.5E7", log_cleaner_threads="4")
    assert limited.log_cleaner_io_max_bytes_per_second == 15_000_000
    assert limited.warnings == ("ignored Kafka configs that have no effect in this broker: log.cleaner.threads",)
    for wrong in ("fast", "nan", "0"):
        assert errors_of(log_cleaner_io_max_bytes_per_second=wrong) == [
            f"log.cleaner.io.max.bytes.per.second={wrong}: expected a number of at least 1"
        ]


def test_warnings_of_a_broker_configuration_are_reported_with_its_errors(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(log_retention_hour="1", num_partitions="0")
    assert caught.value.warnings == (
        "log.retention.hour is not a broker config and is ignored; did you mean log.retention.hours?",
    )
    assert run({"log.retention.hour": "1"}) == 1
    assert "node.id is required" in capsys.readouterr().err
    assert "did you mean log.retention.hours?" in caplog.text


@pytest.mark.parametrize(
    "name", ["RackAwareReplicaSelector", "org.apache.kafka.common.replica.RackAwareReplicaSelector"]
)
def test_replica_selector_is_accepted_by_simple_and_full_class_name(name: str) -> None:
    config = parse(replica_selector_class=name)
    assert (config.replica_selector_class, config.warnings) == (name, ())
    assert parse().replica_selector_class is None


def test_records_are_validated_by_default() -> None:
    assert parse().records_validation == "strict"
    assert parse(headrace_records_validation="headers").records_validation == "headers"


@pytest.mark.parametrize("value", ["none", "STRICT", ""])
def test_unknown_records_validation_is_rejected(value: str) -> None:
    [error] = errors_of(headrace_records_validation=value)
    assert error == f"headrace.records.validation={value}: expected strict or headers"


def test_unknown_replica_selector_is_rejected() -> None:
    [error] = errors_of(replica_selector_class="com.example.Nearest")
    assert error.startswith("replica.selector.class=com.example.Nearest: not supported; use ")
