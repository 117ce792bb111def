"""Topic configurations in force: validation, precedence, and `LogConfig`, what a partition's log reads from them.

CreateTopics and IncrementalAlterConfigs validate here, DescribeConfigs prints `config_in_force`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headrace_broker.log.config_keys import (
    DAY_MS,
    HOUR_MS,
    LONG_MAX,
    WEEK_MS,
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigType,
    ConfigValue,
    format_value,
)
from headrace_broker.log.topic_configs import TOPIC_CONFIGS

__all__ = [
    "BROKER_CONFIGS",
    "LONG_MAX",
    "THROTTLED_RATES",
    "TOPIC_CONFIGS",
    "Altered",
    "ConfigError",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
    "ConfigValue",
    "LogConfig",
    "config_in_force",
    "format_value",
    "validate_broker_configs",
    "validate_topic_config",
    "validate_topic_configs",
]


def validate_topic_config(name: str, value: str | None) -> Any:
    """Return the typed value of one topic configuration. Raises ConfigError naming the nearest known name."""
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        nearest = get_close_matches(name, TOPIC_CONFIGS, n=1)
        hint = f" (did you mean {nearest[0]}?)" if nearest else ""
        raise ConfigError(f"Unknown topic config name: {name}{hint}")
    if value is None:
        raise ConfigError(f"Null value not supported for topic configs: {name}")
    return key.parse(value)


def validate_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Check every one and the rules between them. Raises ConfigError with all that is wrong, one line each."""
    problems = []
    typed: dict[str, Any] = {}
    for name, value in configs.items():
        try:
            typed[name] = validate_topic_config(name, value)
        except ConfigError as error:
            problems.append(str(error))
    minimum = typed.get("min.compaction.lag.ms", 0)
    maximum = typed.get("max.compaction.lag.ms", LONG_MAX)
    if minimum > maximum:
        problems.append(f"min.compaction.lag.ms ({minimum}) must not exceed max.compaction.lag.ms ({maximum})")
    if problems:
        raise ConfigError("\n".join(problems))


THROTTLED_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""What a broker sends to replicas, and fetches for them, in bytes a second, where the topic names them throttled."""

BROKER_CONFIGS = {key.broker_names[0][0]: key for key in TOPIC_CONFIGS.values() if key.broker_names} | {
    name: ConfigKey(
        name,
        ConfigType.LONG,
        LONG_MAX,
        f"Bytes a second for the replicas in {name.removesuffix('rate')}replicas of each topic, on this side.",
        lambda value: None if value >= 0 else "Value must be at least 0",
    )
    for name in THROTTLED_RATES
}
"""The keys of a broker that can be altered while it runs, by the names they have there: topics' defaults, throttles."""


def validate_broker_configs(configs: Mapping[str, str | None]) -> None:
    """Check altered broker configurations.  Raises ConfigError with all that is wrong, one line each."""
    problems = []
    for name, value in configs.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            nearest = get_close_matches(name, BROKER_CONFIGS, n=1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            problems.append(f"{name} cannot be altered: set it in the broker's properties file and restart it{hint}")
        elif value is None:
            problems.append(f"Null value not supported for broker configs: {name}")
        else:
            try:
                key.parse(value)
            except ConfigError as error:
                problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))


Altered = tuple[ConfigSource, Mapping[str, str]]
"""Where a broker's altered configurations come from, and what they are."""


def config_in_force(
    name: str, topic: Mapping[str, str], broker: Mapping[str, str], altered: Sequence[Altered] = ()
) -> ConfigValue:
    """Return a topic configuration's value: the topic's own, else the broker's as altered (the first of `altered` that
    names it), else as in its file, else the default."""
    key = TOPIC_CONFIGS[name]
    found: list[tuple[str, str, ConfigSource]] = []
    if name in topic:
        found.append((name, topic[name], ConfigSource.DYNAMIC_TOPIC))
    for source, values in altered:
        if key.broker_names and key.broker_names[0][0] in values:
            found.append((key.broker_names[0][0], values[key.broker_names[0][0]], source))
    for broker_name, factor in key.broker_names:
        if broker_name in broker:
            value = broker[broker_name]
            found.append((broker_name, value if factor == 1 else _scaled(value, factor), ConfigSource.STATIC_BROKER))
    default_name = key.broker_names[0][0] if key.broker_names else name
    found.append((default_name, format_value(key.default), ConfigSource.DEFAULT))
    return ConfigValue(key, found[0][1], found[0][2], tuple(found))


def _scaled(text: str, factor: int) -> str:
    value = int(text)
    return str(value * factor) if value >= 0 else "-1"  # a negative number of hours is no limit


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one partition's log needs to know of its topic's configuration, typed."""

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
        """When to roll by time: a compacted topic must not wait longer than its compaction lag."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms

    @classmethod
    def from_properties(cls, topic: Mapping[str, str], broker: Mapping[str, str] | None = None) -> LogConfig:
        """Return the configuration in force. Raises ConfigError."""

        def get(name: str) -> Any:
            value = config_in_force(name, topic, broker or {})
            return value.key.default if value.source == ConfigSource.DEFAULT else value.key.parse(value.value)

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
