"""Validates topic configurations and resolves them from their sources.

Defines `LogConfig`, the configuration of one log. CreateTopics and IncrementalAlterConfigs validate configurations
with this module; DescribeConfigs returns the results of `resolve_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from headrace_broker.log.config_keys import (
    DAY_MS,
    HOUR_MS,
    LONG_MAX,
    WEEK_MS,
    ConfigKey,
    ConfigSource,
    ConfigType,
    ConfigValue,
    InvalidConfigError,
    format_value,
)
from headrace_broker.log.topic_configs import TOPIC_CONFIGS

__all__ = [
    "BROKER_CONFIGS",
    "LONG_MAX",
    "THROTTLED_RATES",
    "TOPIC_CONFIGS",
    "DynamicConfigs",
    "InvalidConfigError",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
    "ConfigValue",
    "LogConfig",
    "resolve_config",
    "format_value",
    "validate_broker_configs",
    "validate_topic_config",
    "validate_topic_configs",
]


def validate_topic_config(name: str, value: str | None) -> Any:
    """Return the typed value of one topic configuration. Raises InvalidConfigError."""
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        nearest = get_close_matches(name, TOPIC_CONFIGS, n=1)
        hint = f" (did you mean {nearest[0]}?)" if nearest else ""
        raise InvalidConfigError(f"Unknown topic config name: {name}{hint}")
    if value is None:
        raise InvalidConfigError(f"Null value not supported for topic configs: {name}")
    return key.parse(value)


def validate_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Check each configuration and the constraints between configurations.

    Raises InvalidConfigError with one line per problem.
    """
    problems = []
    typed: dict[str, Any] = {}
    for name, value in configs.items():
        try:
            typed[name] = validate_topic_config(name, value)
        except InvalidConfigError as error:
            problems.append(str(error))
    minimum = typed.get("min.compaction.lag.ms", 0)
    maximum = typed.get("max.compaction.lag.ms", LONG_MAX)
    if minimum > maximum:
        problems.append(f"min.compaction.lag.ms ({minimum}) must not exceed max.compaction.lag.ms ({maximum})")
    if problems:
        raise InvalidConfigError("\n".join(problems))


THROTTLED_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Replication quotas of a broker in bytes per second, for the replicas that a topic lists as throttled. The first quota
limits the bytes that the broker sends as leader. The second quota limits the bytes that it fetches as follower."""

BROKER_CONFIGS = {
    key.broker_names[0][0]: replace(key, name=key.broker_names[0][0])
    for key in TOPIC_CONFIGS.values()
    if key.broker_names
} | {
    name: ConfigKey(
        name,
        ConfigType.LONG,
        LONG_MAX,
        f"Replication quota in bytes per second for the replicas listed in {name.removesuffix('rate')}replicas of "
        "each topic.",
        lambda value: None if value >= 0 else "Value must be at least 0",
    )
    for name in THROTTLED_RATES
}
"""The dynamic configurations of a broker, by their broker-level names: the defaults of topic configurations, and the
replication quotas."""


def validate_broker_configs(configs: Mapping[str, str | None]) -> None:
    """Check dynamic broker configurations. Raises InvalidConfigError with one line per problem."""
    problems = []
    for name, value in configs.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            nearest = get_close_matches(name, BROKER_CONFIGS, n=1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            problems.append(
                f"{name} cannot be altered dynamically: set it in the broker's properties file and restart "
                f"the broker{hint}"
            )
        elif value is None:
            problems.append(f"Null value not supported for broker configs: {name}")
        else:
            try:
                key.parse(value)
            except InvalidConfigError as error:
                problems.append(str(error))
    if problems:
        raise InvalidConfigError("\n".join(problems))


DynamicConfigs = tuple[ConfigSource, Mapping[str, str]]
"""A configuration source, and the dynamic broker configurations that this source sets."""


def resolve_config(
    name: str, topic: Mapping[str, str], broker: Mapping[str, str], dynamic: Sequence[DynamicConfigs] = ()
) -> ConfigValue:
    """Return the effective value of a topic configuration.

    The first of these sources that sets the configuration supplies the value: the topic's own configs, the dynamic
    broker configs (`dynamic`, in this order), the broker's properties file, the default.

    Some topic configurations correspond to several broker configurations. For example, retention.ms corresponds to
    log.retention.ms, log.retention.minutes and log.retention.hours. As in Kafka, only the first broker configuration is
    a synonym. If another one supplies the value, the source of the value is `ConfigSource.DEFAULT`. If a topic
    configuration corresponds to several broker configurations, the synonyms do not include the default value.
    """
    key = TOPIC_CONFIGS[name]
    synonyms: list[tuple[str, str, ConfigSource]] = []
    if name in topic:
        synonyms.append((name, topic[name], ConfigSource.DYNAMIC_TOPIC))
    default = format_value(key.default)
    if key.broker_names:
        primary = key.broker_names[0][0]
        synonyms += [(primary, values[primary], source) for source, values in dynamic if primary in values]
        if primary in broker:
            synonyms.append((primary, broker[primary], ConfigSource.STATIC_BROKER))
        if len(key.broker_names) == 1:
            synonyms.append((primary, default, ConfigSource.DEFAULT))
        secondary = [(broker[name], factor) for name, factor in key.broker_names[1:] if name in broker]
        if secondary:
            default = _scaled(*secondary[0])
    value, source = synonyms[0][1:] if synonyms else (default, ConfigSource.DEFAULT)
    return ConfigValue(key, value, source, tuple(synonyms))


def _scaled(text: str, factor: int) -> str:
    value = int(text)
    return str(value * factor) if value >= 0 else "-1"  # any negative number of hours means that there is no limit


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The typed topic configuration of one partition's log."""

    cleanup_compact: bool = False
    cleanup_delete: bool = True
    compression_type: str = "producer"
    compression_level: int | None = None
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = LONG_MAX
    is_log_append_time: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = WEEK_MS
    unclean_leader_election_enable: bool = False

    @property
    def segment_age_ms_max(self) -> int:
        """The age at which the active segment is rolled.

        In a compacted topic, this age is at most max.compaction.lag.ms.
        """
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms

    @classmethod
    def from_properties(cls, topic: Mapping[str, str], broker: Mapping[str, str] | None = None) -> LogConfig:
        """Return the log's effective configuration from topic and broker properties. Raises InvalidConfigError."""

        def get(name: str) -> Any:
            value = resolve_config(name, topic, broker or {})
            return value.key.parse(value.value)

        policy = get("cleanup.policy")
        codec = get("compression.type")
        return cls(
            cleanup_compact="compact" in policy,
            cleanup_delete="delete" in policy,
            compression_type=codec,
            compression_level=get(f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None,
            delete_retention_ms=get("delete.retention.ms"),
            file_delete_delay_ms=get("file.delete.delay.ms"),
            flush_messages=get("flush.messages"),
            flush_ms=get("flush.ms"),
            index_interval_bytes=get("index.interval.bytes"),
            max_compaction_lag_ms=get("max.compaction.lag.ms"),
            max_message_bytes=get("max.message.bytes"),
            message_timestamp_after_max_ms=get("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms=get("message.timestamp.before.max.ms"),
            is_log_append_time=get("message.timestamp.type") == "LogAppendTime",
            min_cleanable_dirty_ratio=get("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=get("min.compaction.lag.ms"),
            min_insync_replicas=get("min.insync.replicas"),
            preallocate=get("preallocate"),
            retention_bytes=get("retention.bytes"),
            retention_ms=get("retention.ms"),
            segment_bytes=get("segment.bytes"),
            segment_index_bytes=get("segment.index.bytes"),
            segment_jitter_ms=get("segment.jitter.ms"),
            segment_ms=get("segment.ms"),
            unclean_leader_election_enable=get("unclean.leader.election.enable"),
        )
