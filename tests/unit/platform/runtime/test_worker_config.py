"""Tests of the worker configuration: Connect's keys and defaults, errors, and warnings about unknown keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from headrace.api.errors import ConfigErrors
from headrace.runtime.worker_checks import check_worker, host_problems
from headrace.runtime.worker_config import WorkerConfig, WorkerConfigErrors

MINIMUM = {"key.converter": "K", "value.converter": "V"}


def test_worker_config_has_the_defaults_of_kafka_connect() -> None:
    config = WorkerConfig.standalone(MINIMUM)
    assert config.embedded_broker
    assert config["offset.flush.interval.ms"] == 60_000
    assert config["task.shutdown.graceful.timeout.ms"] == 5_000
    assert config["listeners"] == ["http://:8083"]
    assert config["task.isolation"] == "process"
    assert config.warnings == ()


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": "h:1"}], ids=["embedded broker", "other brokers"])
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "headrace-data/connect.offsets"),
        ({"offset.storage.file.filename": " "}, "headrace-data/connect.offsets"),
        ({"headrace.data.dir": "/var/x"}, "/var/x/connect.offsets"),
        ({"headrace.data.dir": "/var/x", "offset.storage.file.filename": "y"}, "y"),
    ],
)
def test_offsets_file_is_in_the_data_directory_unless_another_path_is_configured(
    servers: dict[str, str], settings: dict[str, str], path: str
) -> None:
    assert WorkerConfig.standalone({**MINIMUM, **servers, **settings})["offset.storage.file.filename"] == path


def test_all_worker_config_errors_are_reported_together() -> None:
    with pytest.raises(ConfigErrors) as caught:
        WorkerConfig.standalone(
            {"key.converter": "K", "bootstrap.servers": "h:1", "listeners": "8083", "task.isolation": "vm"}
        )
    text = str(caught.value)
    for key in ("value.converter", "listeners", "task.isolation"):
        assert key in text


def test_unknown_worker_keys_cause_warnings_with_suggestions() -> None:
    config = WorkerConfig.standalone({**MINIMUM, "offset.flush.intervall.ms": "1", "producer.acks": "1"})
    assert config.warnings == (
        "Unknown configuration key offset.flush.intervall.ms is ignored; did you mean offset.flush.interval.ms?",
    )


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("internal.key.converter", "removed"),
        ("rest.port", "use listeners"),
        ("group.id", "distributed"),
        ("config.storage.topic", "distributed"),
        ("exactly.once.source.support", "distributed"),
        ("metric.reporters", "GET /metrics"),
        ("value.converter.plugin.version", "one version"),
        ("producer.interceptor.classes", "do not run Java interceptors"),
        ("consumer.confluent.monitoring.interceptor.bootstrap.servers", "do not run Java interceptors"),
    ],
)
def test_worker_config_keys_without_effect_cause_warnings_with_reasons(key: str, reason: str) -> None:
    (warning,) = WorkerConfig.standalone({**MINIMUM, key: "x"}).warnings
    assert key in warning
    assert reason in warning


def test_worker_with_the_removed_key_rest_host_name_starts_only_with_listeners() -> None:
    """Without this error, the worker would open its REST API on all addresses, and not only on the configured one."""
    removed = {**MINIMUM, "rest.host.name": "127.0.0.1", "rest.port": "8090"}
    with pytest.raises(ConfigErrors, match=r"rest\.host\.name.*set listeners=http://127\.0\.0\.1:8090"):
        WorkerConfig.standalone(removed)
    warnings = WorkerConfig.standalone({**removed, "listeners": "http://127.0.0.1:8090"}).warnings
    assert any("rest.host.name" in warning for warning in warnings)


def test_worker_with_jetty_classes_that_authenticate_rest_requests_does_not_start() -> None:
    props = {**MINIMUM, "rest.servlet.initializor.classes": "com.acme.AuthenticationHandler"}
    with pytest.raises(
        ConfigErrors, match=r"rest\.servlet\.initializor\.classes: Java classes cannot be loaded; set rest"
    ):
        WorkerConfig.standalone(props)


def test_misspelt_admin_listeners_cause_a_warning_although_keys_of_the_admin_client_have_the_same_prefix() -> None:
    (warning,) = WorkerConfig.standalone({**MINIMUM, "admin.listener": "", "admin.retries": "1"}).warnings
    assert warning == "Unknown configuration key admin.listener is ignored; did you mean admin.listeners?"


DISTRIBUTED = {
    **MINIMUM,
    "bootstrap.servers": "h:1",
    "group.id": "g",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bootstrap.servers", "h", "'h' is not host:port"),
        ("bootstrap.servers", "h:1,PLAINTEXT://h:70000", "'PLAINTEXT://h:70000' is not host:port"),
        ("bootstrap.servers", "", "set host:port"),
        ("group.id", " ", "non-empty"),
        ("config.storage.topic", "", "non-empty"),
        ("status.storage.topic", "o", "offset.storage.topic is the same topic"),
        ("offset.storage.topic", "a b", "letters, digits"),
        ("status.storage.replication.factor", "0", "positive number, or -1"),
        ("status.storage.partitions", "-2", "positive number, or -1"),
        ("heartbeat.interval.ms", "10000", "less than session.timeout.ms=10000"),
        ("session.timeout.ms", "0", "at least 1"),
        ("rest.advertised.port", "70000", "0 to 65535"),
        ("scheduled.rebalance.max.delay.ms", "5m", "Not a number of type INT"),
    ],
)
def test_error_for_an_invalid_value_in_a_distributed_worker_config_contains_the_key_and_the_reason(
    key: str, value: str, expected: str
) -> None:
    assert WorkerConfig.distributed(DISTRIBUTED).warnings == ()
    with pytest.raises(WorkerConfigErrors) as caught:
        WorkerConfig.distributed({**DISTRIBUTED, key: value, "group.idd": "x"})
    assert key in {error.key for error in caught.value.errors}
    assert expected in str(caught.value)
    assert caught.value.warnings == ("Unknown configuration key group.idd is ignored; did you mean group.id?",)


def test_misspelt_keys_of_an_internal_topic_cause_warnings_with_suggestions() -> None:
    keys = {
        "config.storage.replicaton.factor": "1",
        "offset.storage.partition": "25",
        "status.storage.min.insync.replica": "2",
        "status.storage.min.insync.replicas": "2",
        "status.storage.vendor.placement": "x",  # a broker may have topic configs that Apache Kafka lacks
    }
    text = "Configuration key {} sets the unknown topic config {}; did you mean {}?"
    assert WorkerConfig.distributed({**DISTRIBUTED, **keys}).warnings == (
        text.format("config.storage.replicaton.factor", "replicaton.factor", "config.storage.replication.factor"),
        text.format("offset.storage.partition", "partition", "offset.storage.partitions"),
        text.format("status.storage.min.insync.replica", "min.insync.replica", "status.storage.min.insync.replicas"),
    )


def test_error_for_an_invalid_client_setting_of_a_worker_names_the_key_with_its_prefix() -> None:
    settings = {
        "producer.acks": "2",
        "consumer.max.poll.records": "0",
        "consumer.group.protocol": "consumer",
        "admin.retries": "x",
        "request.timeout.ms": "y",
    }
    result = check_worker({**DISTRIBUTED, "bootstrap.servers": "localhost:1", **settings}, WorkerConfig.distributed)
    assert result.config is None
    assert [error.partition("=")[0] for error in result.errors] == list(settings)


def test_bootstrap_host_that_cannot_be_resolved_causes_only_a_warning_if_another_host_can_be_resolved() -> None:
    errors, warnings = host_problems("localhost:1,nowhere.invalid:1")
    assert errors == []
    (warning,) = warnings
    assert warning.startswith("bootstrap.servers: the host nowhere.invalid cannot be resolved")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "sasl_ssl"])
@pytest.mark.parametrize("parse", [WorkerConfig.standalone, WorkerConfig.distributed])
def test_worker_with_a_security_protocol_other_than_plaintext_is_rejected(
    parse: Callable[[Mapping[str, str]], WorkerConfig], protocol: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse({**MINIMUM, "security.protocol": protocol})
    found = [error.reason for error in caught.value.errors if error.key == "security.protocol"]
    assert found == ["not supported yet; use PLAINTEXT"]
