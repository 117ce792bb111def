"""The broker's configuration: Kafka's keys, defaults and units, read from a properties file.

`BrokerConfig.from_properties` reports every error at once and warns about each key that it does not know, with the
nearest known one.  A field's metadata is the single place where its key, default and bounds stand; `DescribeConfigs`
shows the same table.  Keys of the log (`log.retention.ms`, `log.segment.bytes`, ...) are `log.config`'s and are kept
in `log_properties`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.log.config import TOPIC_CONFIGS, LogConfig, format_value
from headrace_broker.server.config_keys import (
    NO_MEANING_HERE,
    ConfigError,
    key_metadata,
    nearest_key,
    parse_value,
)
from headrace_broker.server.endpoints import (
    Listener,
    advertised_from,
    parse_listeners,
    parse_protocol_map,
    parse_voters,
)

__all__ = ["BrokerConfig", "ConfigError"]


def _key(
    name: str, default: Any = dataclasses.MISSING, *, minimum: int | None = None, maximum: int | None = None
) -> Any:
    return field(default=default, metadata=key_metadata(name, minimum, maximum))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What one node was told; immutable, made by `from_properties`."""

    node_id: int = _key("node.id", minimum=0)
    process_roles: tuple[str, ...] = _key("process.roles", ("broker", "controller"))
    rack: str | None = _key("broker.rack", None)
    log_dirs: tuple[str, ...] = _key("log.dirs", ("/tmp/kafka-logs",))
    metadata_log_dir: str | None = _key("metadata.log.dir", None)
    max_connections: int = _key("max.connections", 2147483647, minimum=0)
    max_connections_per_ip: int = _key("max.connections.per.ip", 2147483647, minimum=0)
    connections_max_idle_ms: int = _key("connections.max.idle.ms", 600_000)
    socket_request_max_bytes: int = _key("socket.request.max.bytes", 104_857_600, minimum=1)
    socket_send_buffer_bytes: int = _key("socket.send.buffer.bytes", 102_400, minimum=-1)
    socket_receive_buffer_bytes: int = _key("socket.receive.buffer.bytes", 102_400, minimum=-1)
    socket_listen_backlog_size: int = _key("socket.listen.backlog.size", 50, minimum=1)
    auto_create_topics_enable: bool = _key("auto.create.topics.enable", True)
    delete_topic_enable: bool = _key("delete.topic.enable", True)
    num_partitions: int = _key("num.partitions", 1, minimum=1)
    default_replication_factor: int = _key("default.replication.factor", 1, minimum=1, maximum=32767)
    queued_max_request_bytes: int = _key("queued.max.request.bytes", -1, minimum=-1, maximum=2**63 - 1)
    fetch_max_bytes: int = _key("fetch.max.bytes", 57_671_680, minimum=1024)
    max_request_partition_size_limit: int = _key("max.request.partition.size.limit", 2000, minimum=1)
    offsets_topic_num_partitions: int = _key("offsets.topic.num.partitions", 50, minimum=1)
    offsets_topic_replication_factor: int = _key("offsets.topic.replication.factor", 3, minimum=1, maximum=32767)
    offsets_topic_segment_bytes: int = _key("offsets.topic.segment.bytes", 104_857_600, minimum=1)
    offsets_commit_timeout_ms: int = _key("offsets.commit.timeout.ms", 5000, minimum=1)
    offsets_retention_minutes: int = _key("offsets.retention.minutes", 10_080, minimum=1)
    offsets_retention_check_interval_ms: int = _key("offsets.retention.check.interval.ms", 600_000, minimum=1)
    offset_metadata_max_bytes: int = _key("offset.metadata.max.bytes", 4096)
    group_initial_rebalance_delay_ms: int = _key("group.initial.rebalance.delay.ms", 3000)
    group_min_session_timeout_ms: int = _key("group.min.session.timeout.ms", 6000)
    group_max_session_timeout_ms: int = _key("group.max.session.timeout.ms", 1_800_000)
    group_max_size: int = _key("group.max.size", 2147483647, minimum=1)
    log_retention_check_interval_ms: int = _key("log.retention.check.interval.ms", 300_000, minimum=1)
    producer_id_expiration_ms: int = _key("producer.id.expiration.ms", 86_400_000, minimum=1)

    listeners: tuple[Listener, ...] = ()
    advertised_listeners: tuple[Listener, ...] = ()
    controller_listener_names: tuple[str, ...] = ()
    log_properties: Mapping[str, str] = field(default_factory=dict)
    log_defaults: LogConfig = field(default_factory=LogConfig)
    originals: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parse Kafka's properties; raises ConfigError with every error; either has the `.warnings`."""
        return _Parser(properties).parse()

    @property
    def metadata_dir(self) -> str:
        """The directory that holds `__cluster_metadata-0` (metadata.log.dir, else the first log dir)."""
        return self.metadata_log_dir or self.log_dirs[0]

    @property
    def all_dirs(self) -> tuple[str, ...]:
        """Every data directory, each once, the log dirs first."""
        return tuple(dict.fromkeys((*self.log_dirs, self.metadata_dir)))

    def described(self) -> list[tuple[str, str | None, bool]]:
        """(key, value, is_set) for each key that stands in a field, as DescribeConfigs shows them."""
        rows: list[tuple[str, str | None, bool]] = []
        for item in dataclasses.fields(self):
            name = item.metadata.get("key")
            if name is not None:
                rows.append((name, _shown(getattr(self, item.name)), name in self.originals))
        listeners = ("listeners", "advertised.listeners")
        rows += [(name, self.originals.get(name), name in self.originals) for name in listeners]
        return rows + [
            (name, self.originals.get(name, format_value(key.default)), name in self.originals)
            for name, (key, factor) in LOG_KEYS.items()
            if factor == 1 or name in self.originals
        ]


def _shown(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


_FIELDS = {item.metadata["key"]: item for item in dataclasses.fields(BrokerConfig) if "key" in item.metadata}
_STRUCTURED = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "controller.quorum.voters",
    "broker.id",
    "log.dir",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
)
LOG_KEYS = {name: (key, factor) for key in TOPIC_CONFIGS.values() for name, factor in key.broker_names}
KNOWN_KEYS = frozenset((*_FIELDS, *_STRUCTURED, *LOG_KEYS))


class _Parser:
    """One pass over the properties that collects errors instead of stopping at the first."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = {key: value.strip() for key, value in properties.items()}
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def parse(self) -> BrokerConfig:
        self._apply_synonyms()
        self._warn_about_unknown()
        values = self._fields()
        listeners = self._listeners()
        log_defaults = self._log_config()
        node_id = values.get("node_id")
        if isinstance(node_id, int):
            self._check_quorum(node_id)
        self._check_roles(values.get("process_roles"))
        if self.errors:
            raise ConfigError(self.errors, tuple(self.warnings))
        assert listeners is not None
        assert log_defaults is not None
        return BrokerConfig(
            **values,
            listeners=listeners[0],
            advertised_listeners=listeners[1],
            controller_listener_names=listeners[2],
            log_properties={key: value for key, value in self.properties.items() if key in LOG_KEYS},
            log_defaults=log_defaults,
            originals=self.properties,
            warnings=tuple(self.warnings),
        )

    def _apply_synonyms(self) -> None:
        for old, new in (("broker.id", "node.id"), ("log.dir", "log.dirs")):
            if old not in self.properties:
                continue
            if new not in self.properties:
                self.properties[new] = self.properties[old]
            elif self.properties[old] != self.properties[new]:
                self.warnings.append(f"{old} is ignored because {new} is set")

    def _warn_about_unknown(self) -> None:
        meaningless: list[str] = []
        for key in self.properties:
            if key in KNOWN_KEYS:
                continue
            if key in NO_MEANING_HERE or key.startswith(("listener.name.", "metric.reporters")):
                meaningless.append(key)
                continue
            near = nearest_key(key, KNOWN_KEYS)
            hint = f"; did you mean {near}?" if near else ""
            self.warnings.append(f"{key} is not a key of the broker and is ignored{hint}")
        if meaningless:
            self.warnings.append(f"ignored, because they steer nothing in this broker: {', '.join(meaningless)}")

    def _fields(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, item in _FIELDS.items():
            text = self.properties.get(name)
            if text is None:
                if item.default is dataclasses.MISSING:
                    self.errors.append(f"{name} is required and has no default: give this node a number, {name}=1")
                continue
            try:
                values[item.name] = parse_value(name, text, item)
            except ValueError as error:
                self.errors.append(str(error))
        return values

    def _listeners(self) -> tuple[tuple[Listener, ...], tuple[Listener, ...], tuple[str, ...]] | None:
        controller = tuple(_split(self.properties.get("controller.listener.names", "CONTROLLER")))
        before = len(self.errors)
        protocols = parse_protocol_map(self.properties.get("listener.security.protocol.map"), self.errors)
        listeners = parse_listeners(
            "listeners", self.properties.get("listeners", "PLAINTEXT://:9092"), protocols, controller, self.errors
        )
        advertised = parse_listeners(
            "advertised.listeners", self.properties.get("advertised.listeners", ""), protocols, controller, self.errors
        )
        if len(self.errors) > before:
            return None
        serving = tuple(item for item in listeners if item.name not in controller)
        if not serving:
            self.errors.append("listeners holds no listener for clients: add PLAINTEXT://host:port")
            return None
        for_clients = tuple(item for item in advertised if item.name not in controller)
        return serving, advertised_from(serving, for_clients, self.errors), controller

    def _log_config(self) -> LogConfig | None:
        before = len(self.errors)
        for name, text in self.properties.items():
            if name in LOG_KEYS:
                key, factor = LOG_KEYS[name]
                try:
                    key.parse(text if factor == 1 else str(max(int(text) * factor, -1)))
                except ValueError:
                    self.errors.append(f"{name}={text}: not a value of type {key.type.name}, or out of range")
        if len(self.errors) > before:
            return None
        return LogConfig.from_properties(
            {}, {name: self.properties[name] for name in LOG_KEYS if name in self.properties}
        )

    def _check_quorum(self, node_id: int) -> None:
        text = self.properties.get("controller.quorum.voters")
        if not text:
            return
        voters = parse_voters(text, self.errors)
        if voters and set(voters) != {node_id}:
            self.errors.append(
                f"controller.quorum.voters={text}: only a quorum of this node alone ({node_id}@host:port) is supported"
            )

    def _check_roles(self, roles: object) -> None:
        if roles is not None and set(roles) != {"broker", "controller"}:  # type: ignore[call-overload]
            self.errors.append("process.roles must be broker,controller: this node is broker and controller in one")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
