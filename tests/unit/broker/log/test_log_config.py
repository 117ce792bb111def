"""Tests of topic configs: Kafka's names and defaults, precedence over broker configs, and validation errors."""

from __future__ import annotations

import pytest

from headrace_broker.log.config import (
    TOPIC_CONFIGS,
    ConfigSource,
    InvalidConfigError,
    LogConfig,
    format_value,
    resolve_config,
    validate_topic_config,
    validate_topic_configs,
)


def test_default_of_every_topic_config_is_valid() -> None:
    assert len(TOPIC_CONFIGS) == 33
    for key in TOPIC_CONFIGS.values():
        assert key.parse(format_value(key.default)) == key.default
        assert key.doc.endswith(".")
    assert LogConfig.from_properties({}) == LogConfig()


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "3", "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
        ({}, 604_800_000),
    ],
)
def test_default_of_retention_ms_comes_from_log_retention_ms_or_else_minutes_or_else_hours(
    broker: dict[str, str], expected: int
) -> None:
    assert LogConfig.from_properties({}, broker).retention_ms == expected


def test_synonyms_of_a_topic_config_are_listed_and_the_topic_config_overrides_the_broker_config() -> None:
    value = resolve_config("segment.bytes", {"segment.bytes": "2000000"}, {"log.segment.bytes": "3000000"})
    assert (value.value, value.source) == ("2000000", ConfigSource.DYNAMIC_TOPIC)
    assert value.synonyms == (
        ("segment.bytes", "2000000", ConfigSource.DYNAMIC_TOPIC),
        ("log.segment.bytes", "3000000", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    )


def test_retention_ms_that_is_derived_from_log_retention_hours_is_reported_with_source_default() -> None:
    value = resolve_config("retention.ms", {}, {"log.retention.hours": "168"})
    assert (value.value, value.source, value.synonyms) == ("604800000", ConfigSource.DEFAULT, ())
    shorter = resolve_config("retention.ms", {}, {"log.retention.hours": "24"})
    assert (shorter.value, shorter.source, shorter.synonyms) == ("86400000", ConfigSource.DEFAULT, ())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retention.mss", "1", r"did you mean retention\.ms"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "soon", "Not a value of type LONG"),
        ("segment.bytes", "4294967296", "Not a value of type INT"),
        ("segment.bytes", "1000", "at least 1048576"),
        ("cleanup.policy", "compress", "compact, delete"),
        ("compression.type", "lzma", "one of"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("preallocate", "yes", "BOOLEAN"),
        ("remote.storage.enable", "true", "not supported"),
        ("retention.ms", None, "Null value"),
    ],
)
def test_error_for_an_invalid_topic_config_names_the_problem(name: str, value: str | None, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        validate_topic_config(name, value)


def test_all_topic_config_errors_are_reported_together() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        validate_topic_configs({"nonsense": "1", "retention.ms": "x", "max.compaction.lag.ms": "5"})
    assert len(str(raised.value).splitlines()) == 2
    with pytest.raises(InvalidConfigError, match="must not exceed"):
        validate_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
    validate_topic_configs({"cleanup.policy": "compact,delete", "retention.ms": "-1"})
