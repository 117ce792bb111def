"""The client's configuration, with the keys, defaults and units of Java's producer, consumer and admin client.

`ClientConfig.from_properties` reports all errors together, and warns about each key that it ignores. The metadata of
each dataclass field defines its key, the kinds of client that use the key, and the bounds of its value. A Connect
worker applies the client overrides of a connector before it calls `from_properties`. `explicit` contains the keys that
were set, because some rules of the Java clients apply only to keys that were set.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace_broker.client.config_values import (
    IGNORED_KEYS,
    SECURITY_PREFIXES,
    nearest_key,
    parse_servers,
    parse_value,
)
from headrace_broker.client.errors import ClientConfigError
from headrace_broker.records.compression import Compression

Kind = Literal["producer", "consumer", "admin"]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_client_numbers = itertools.count(1)


def _key(
    name: str,
    default: Any,
    kinds: str = "pca",
    *,
    minimum: int = 0,
    maximum: int = _INT32_MAX,
    choices: tuple[str, ...] = (),
) -> Any:
    return field(
        default=default,
        metadata={"key": name, "kinds": kinds, "minimum": minimum, "maximum": maximum, "choices": choices},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The configuration of one client; immutable, created by `from_properties`."""

    kind: Kind
    bootstrap_servers: tuple[tuple[str, int], ...]
    explicit: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    client_id: str = _key("client.id", "")
    client_rack: str = _key("client.rack", "", "pc")
    security_protocol: str = _key("security.protocol", "PLAINTEXT")
    request_timeout_ms: int = _key("request.timeout.ms", 30_000)
    default_api_timeout_ms: int = _key("default.api.timeout.ms", 60_000, "ca")
    retry_backoff_ms: int = _key("retry.backoff.ms", 100, maximum=_INT64_MAX)
    retry_backoff_max_ms: int = _key("retry.backoff.max.ms", 1000, maximum=_INT64_MAX)
    reconnect_backoff_ms: int = _key("reconnect.backoff.ms", 50, maximum=_INT64_MAX)
    reconnect_backoff_max_ms: int = _key("reconnect.backoff.max.ms", 1000, maximum=_INT64_MAX)
    connection_setup_timeout_ms: int = _key("socket.connection.setup.timeout.ms", 10_000, maximum=_INT64_MAX)
    metadata_max_age_ms: int = _key("metadata.max.age.ms", 300_000, maximum=_INT64_MAX)
    # -1 = the kernel sizes the socket buffers, which is faster than the fixed sizes of the Java client's defaults.
    send_buffer_bytes: int = _key("send.buffer.bytes", -1, minimum=-1)
    receive_buffer_bytes: int = _key("receive.buffer.bytes", -1, minimum=-1)
    retries: int = _key("retries", _INT32_MAX, "pa")

    acks: int = _key("acks", -1, "p", choices=("all", "-1", "0", "1"))
    compression: Compression = _key(  # noqa: RUF009  (a field; the enum hides that from ruff)
        "compression.type", Compression.NONE, "p", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    compression_gzip_level: int = _key("compression.gzip.level", -1, "p", minimum=-1, maximum=9)
    compression_lz4_level: int = _key("compression.lz4.level", 9, "p", minimum=1, maximum=17)
    compression_zstd_level: int = _key("compression.zstd.level", 3, "p", minimum=-131_072, maximum=22)
    batch_size: int = _key("batch.size", 16_384, "p")
    linger_ms: int = _key("linger.ms", 5, "p", maximum=_INT64_MAX)
    buffer_memory: int = _key("buffer.memory", 33_554_432, "p", maximum=_INT64_MAX)
    max_request_size: int = _key("max.request.size", 1_048_576, "p")
    max_block_ms: int = _key("max.block.ms", 60_000, "p", maximum=_INT64_MAX)
    delivery_timeout_ms: int = _key("delivery.timeout.ms", 120_000, "p")
    max_in_flight: int = _key("max.in.flight.requests.per.connection", 5, "p", minimum=1)
    enable_idempotence: bool = _key("enable.idempotence", True, "p")
    partitioner_ignore_keys: bool = _key("partitioner.ignore.keys", False, "p")
    transactional_id: str | None = _key("transactional.id", None, "p")

    group_id: str | None = _key("group.id", None, "c")
    group_instance_id: str | None = _key("group.instance.id", None, "c")
    group_protocol: str = _key("group.protocol", "classic", "c", choices=("classic", "consumer"))
    session_timeout_ms: int = _key("session.timeout.ms", 45_000, "c")
    heartbeat_interval_ms: int = _key("heartbeat.interval.ms", 3_000, "c")
    max_poll_interval_ms: int = _key("max.poll.interval.ms", 300_000, "c", minimum=1)
    max_poll_records: int = _key("max.poll.records", 500, "c", minimum=1)
    assignment_strategies: tuple[str, ...] = _key("partition.assignment.strategy", ("range", "cooperative-sticky"), "c")
    enable_auto_commit: bool = _key("enable.auto.commit", True, "c")
    auto_commit_interval_ms: int = _key("auto.commit.interval.ms", 5_000, "c")
    auto_offset_reset: str = _key("auto.offset.reset", "latest", "c")
    fetch_min_bytes: int = _key("fetch.min.bytes", 1, "c")
    fetch_max_bytes: int = _key("fetch.max.bytes", 52_428_800, "c")
    fetch_max_wait_ms: int = _key("fetch.max.wait.ms", 500, "c")
    max_partition_fetch_bytes: int = _key("max.partition.fetch.bytes", 1_048_576, "c")
    check_crcs: bool = _key("check.crcs", True, "c")
    isolation_level: str = _key(
        "isolation.level", "read_uncommitted", "c", choices=("read_uncommitted", "read_committed")
    )
    exclude_internal_topics: bool = _key("exclude.internal.topics", True, "c")
    allow_auto_create_topics: bool = _key("allow.auto.create.topics", True, "c")

    @property
    def compression_level(self) -> int | None:
        """The configured compression level, or None for the default level of the codec."""
        name = self.compression.name.lower()
        if f"compression.{name}.level" not in self.explicit:
            return None
        level: int = getattr(self, f"compression_{name}_level")
        return level

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], kind: Kind) -> ClientConfig:
        """Parse Java client properties for one kind of client. Raises ClientConfigError with all errors."""
        errors: list[str] = []
        warnings: list[str] = []
        values = _parse_known(properties, kind, errors)
        values["bootstrap_servers"] = parse_servers(properties.get("bootstrap.servers"), errors)
        explicit = frozenset(properties)
        _check_security(values, errors)
        if kind == "producer":
            _apply_producer_rules(values, explicit, errors, warnings)
        elif kind == "consumer":
            _apply_consumer_rules(values, errors)
        warnings += _warn_about_ignored_keys(properties, kind)
        if errors:
            raise ClientConfigError(kind, errors)
        if not values.get("client_id"):
            values["client_id"] = _default_client_id(kind, values)
        return cls(kind=kind, explicit=explicit, warnings=tuple(warnings), **values)


_FIELDS = {item.metadata["key"]: item for item in dataclasses.fields(ClientConfig) if "key" in item.metadata}


def _parse_known(properties: Mapping[str, str], kind: Kind, errors: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, item in _FIELDS.items():
        text = properties.get(name)
        if text is None or kind[0] not in item.metadata["kinds"]:
            continue
        try:
            values[item.name] = parse_value(item, text)
        except ValueError as error:
            errors.append(f"{name}={text}: {error}")
    return values


def _check_security(values: dict[str, Any], errors: list[str]) -> None:
    protocol = str(values.get("security_protocol", "PLAINTEXT")).upper()
    values["security_protocol"] = protocol
    if protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        errors.append(f"security.protocol={protocol}: not supported yet; use PLAINTEXT")
    elif protocol != "PLAINTEXT":
        errors.append(
            f"security.protocol={protocol}: expected PLAINTEXT (SSL, SASL_PLAINTEXT and SASL_SSL are not supported yet)"
        )


def _apply_producer_rules(
    values: dict[str, Any], explicit: frozenset[str], errors: list[str], warnings: list[str]
) -> None:
    """Check the producer's keys that depend on each other.

    Disable idempotence in the cases in which Java disables it.
    """
    if values.get("transactional_id") is not None:
        errors.append("transactional.id: transactions are not supported yet; remove the key")
    if values.get("enable_idempotence", True):
        is_explicit = "enable.idempotence" in explicit
        for rule, is_violated in (
            ("retries must not be 0", values.get("retries", 1) == 0),
            ("acks must be all", values.get("acks", -1) != -1),
            ("max.in.flight.requests.per.connection must be at most 5", values.get("max_in_flight", 5) > 5),
        ):
            if is_violated and (is_explicit or rule.startswith("max")):
                errors.append(f"enable.idempotence=true: {rule}")
            elif is_violated:
                values["enable_idempotence"] = False
                warnings.append(f"enable.idempotence: disabled; for idempotence, {rule}")
    shortest = values.get("linger_ms", 5) + values.get("request_timeout_ms", 30_000)
    if values.get("delivery_timeout_ms", 120_000) < shortest:
        if "delivery.timeout.ms" in explicit:
            errors.append(f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms = {shortest}")
        values["delivery_timeout_ms"] = min(shortest, _INT32_MAX)


def _apply_consumer_rules(values: dict[str, Any], errors: list[str]) -> None:
    if values.get("group_protocol") == "consumer":
        errors.append("group.protocol=consumer: not supported yet; remove the key to use the classic group protocol")
    if values.get("heartbeat_interval_ms", 3_000) >= values.get("session_timeout_ms", 45_000):
        errors.append("heartbeat.interval.ms must be smaller than session.timeout.ms")
    if values.get("group_instance_id") == "":
        errors.append("group.instance.id: must not be empty")


def _warn_about_ignored_keys(properties: Mapping[str, str], kind: Kind) -> list[str]:
    known = [name for name, item in _FIELDS.items() if kind[0] in item.metadata["kinds"]]
    warnings = []
    for name in properties:
        if name == "bootstrap.servers" or name in known:
            continue
        if name in IGNORED_KEYS or name.startswith(SECURITY_PREFIXES):
            warnings.append(f"{name}: ignored; it has no effect on a headrace {kind}")
        elif name in _FIELDS:
            warnings.append(f"{name}: ignored; it is not a {kind} key")
        else:
            near = nearest_key(name, [*known, "bootstrap.servers"])
            warnings.append(f"{name}: ignored; unknown {kind} key" + (f" (did you mean {near}?)" if near else ""))
    return warnings


def _default_client_id(kind: Kind, values: Mapping[str, Any]) -> str:
    if kind == "consumer" and values.get("group_id"):
        return f"consumer-{values['group_id']}-{next(_client_numbers)}"
    return f"{'adminclient' if kind == 'admin' else kind}-{next(_client_numbers)}"
