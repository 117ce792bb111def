"""Parses single configuration values: types, bounds and units. Lists the Kafka keys that this broker ignores."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from headrace_broker.log.config import ConfigType

_LIMITS = {ConfigType.SHORT: 2**15, ConfigType.INT: 2**31, ConfigType.LONG: 2**63}


class ConfigError(ValueError):
    """The configuration is invalid. `.errors` has one line per error; `.warnings` may explain the errors."""

    def __init__(self, errors: list[str], warnings: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.warnings = warnings


def key_metadata(name: str, minimum: int | None, maximum: int | None, config_type: ConfigType | None) -> dict[str, Any]:
    """Return the metadata for the dataclass field of the config `name`."""
    return {"key": name, "minimum": minimum, "maximum": maximum, "type": config_type}


def parse_value(name: str, text: str, item: Field[Any]) -> Any:
    """Return the typed value of a property. Raises ValueError with the key and the allowed values."""
    kind = str(item.type)
    if kind == "bool":
        return _parse_bool(name, text)
    if kind == "float":
        return _parse_float(name, text, item.metadata["minimum"])
    if kind == "int":
        return _parse_int(name, text, item)
    if kind.startswith("tuple"):
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:
            raise ValueError(f"{name} must not be empty")
        return parts
    return text or None


def value_type(item: Field[Any]) -> ConfigType:
    """Return the type of a config for DescribeConfigs; `item` is the config's dataclass field."""
    kind = str(item.type)
    config_type: ConfigType | None = item.metadata["type"]
    if config_type is not None:
        return config_type
    if kind.startswith("tuple"):
        return ConfigType.LIST
    types = {"bool": ConfigType.BOOLEAN, "float": ConfigType.DOUBLE, "int": ConfigType.INT}
    return types.get(kind, ConfigType.STRING)


def _parse_bool(name: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{name}={text}: expected true or false")
    return lowered == "true"


def _parse_int(name: str, text: str, item: Field[Any]) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name}={text}: expected a whole number{_unit(name)}") from None
    minimum, maximum, limit = item.metadata["minimum"], item.metadata["maximum"], _LIMITS[value_type(item)]
    low = minimum if minimum is not None else -limit
    high = maximum if maximum is not None else limit - 1
    if not low <= value <= high:
        raise ValueError(f"{name}={text}: expected {low}..{high}{_unit(name)}")
    return value


def _parse_float(name: str, text: str, minimum: int | None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or (minimum is not None and value < minimum):
        at_least = "" if minimum is None else f" of at least {minimum}"
        raise ValueError(f"{name}={text}: expected a number{at_least}{_unit(name)}")
    return value


def _unit(name: str) -> str:
    for suffix, unit in ((".ms", " of milliseconds"), (".bytes", " of bytes"), (".minutes", " of minutes")):
        if name.endswith(suffix):
            return unit
    return ""


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that is most similar to `key`, or None if no known key is similar."""
    matches = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None


# Keys of Kafka's broker for threads, ZooKeeper or features that this broker does not have. A separate warning says that
# they have no effect: they are valid keys of Kafka, so the warning about unknown keys would be wrong.
_IGNORED_KEYS = """
advertised.host.name advertised.port background.threads broker.id.generation.enable
compression.gzip.level compression.lz4.level compression.zstd.level
control.plane.listener.name controlled.shutdown.enable controlled.shutdown.max.retries
controlled.shutdown.retry.backoff.ms controller.quorum.append.linger.ms
controller.quorum.retry.backoff.ms controller.socket.timeout.ms
fetch.purgatory.purge.interval.requests group.consumer.assignors
group.consumer.heartbeat.interval.ms group.consumer.session.timeout.ms group.coordinator.append.linger.ms
group.coordinator.new.enable group.coordinator.rebalance.protocols group.coordinator.threads host.name
inter.broker.protocol.version kafka.metrics.polling.interval.secs
kafka.metrics.reporters
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.threads
log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms log.message.format.version
metadata.max.idle.interval.ms
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads
num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
offsets.commit.required.acks offsets.load.buffer.size offsets.topic.compression.codec password.encoder.secret
producer.purgatory.purge.interval.requests queued.max.requests replica.high.watermark.checkpoint.interval.ms
replica.socket.receive.buffer.bytes request.timeout.ms reserved.broker.max.id
server.max.startup.time.ms share.coordinator.state.topic.min.isr
share.coordinator.state.topic.replication.factor socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms
transaction.max.timeout.ms transaction.remove.expired.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size transaction.state.log.min.isr transaction.state.log.num.partitions
transaction.state.log.replication.factor transaction.state.log.segment.bytes transactional.id.expiration.ms
unstable.api.versions.enable unstable.feature.versions.enable zookeeper.connect zookeeper.connection.timeout.ms
zookeeper.session.timeout.ms
"""
IGNORED_KEYS = frozenset(_IGNORED_KEYS.split())
