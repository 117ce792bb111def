"""Tests of the worker configuration: Connect's keys and defaults, errors, and warnings about unknown keys."""

from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.runtime.worker_config import WorkerConfig

MINIMUM = {"key.converter": "K", "value.converter": "V"}


def test_defaults_are_those_of_kafka_connect() -> None:
    config = WorkerConfig.standalone(MINIMUM)
    assert config.embedded_broker
    assert config["offset.flush.interval.ms"] == 60_000
    assert config["task.shutdown.graceful.timeout.ms"] == 5_000
    assert config["listeners"] == ["http://:8083"]
    assert config["task.isolation"] == "process"
    assert config.warnings == ()


def test_all_worker_config_errors_are_reported() -> None:
    with pytest.raises(ConfigErrors) as caught:
        WorkerConfig.standalone(
            {"key.converter": "K", "bootstrap.servers": "h:1", "listeners": "8083", "task.isolation": "vm"}
        )
    text = str(caught.value)
    for key in ("value.converter", "listeners", "task.isolation", "offset.storage.file.filename"):
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
        ("group.id", "distributed"),
        ("config.storage.topic", "distributed"),
        ("exactly.once.source.support", "distributed"),
        ("metric.reporters", "GET /metrics"),
        ("value.converter.plugin.version", "one version"),
    ],
)
def test_ignored_worker_keys_cause_warnings_with_reasons(key: str, reason: str) -> None:
    (warning,) = WorkerConfig.standalone({**MINIMUM, key: "x"}).warnings
    assert key in warning
    assert reason in warning
