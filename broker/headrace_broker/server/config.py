"""The broker's configuration: Kafka's keys, defaults and units, read from a properties file.

`BrokerConfig.from_properties` reports all errors together. For each unknown key, it adds a warning with the most
similar known key. Each key is defined only once, with its default and its bounds, as a dataclass field;
`DescribeConfigs` also uses this definition. Keys of the log (`log.retention.ms`, `log.segment.bytes`, ...) are defined
in `log.config`; their values are in `log_properties`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from headrace_broker.log.config import TOPIC_CONFIGS, ConfigType, LogConfig, format_value
from headrace_broker.metadata.protections import PROTECTING_KEYS
from headrace_broker.replication.read_replica import SELECTORS
from headrace_broker.server.config_keys import (
    IGNORED_KEYS,
    ConfigError,
    key_metadata,
    nearest_key,
    parse_value,
    value_type,
)
from headrace_broker.server.network.endpoints import (
    DEFAULT_LISTENERS,
    DEFAULT_PROTOCOL_MAP,
    Listener,
    parse_addresses,
    parse_voters,
)
from headrace_broker.server.network.listener_configs import parse_listener_configs
from headrace_broker.server.security_keys import check_security_keys, is_security_key

__all__ = ["BrokerConfig", "ConfigError"]

STRICT = "strict"
_RECORDS_VALIDATIONS = (STRICT, "headers")


def _key(
    name: str,
    default: Any = dataclasses.MISSING,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    config_type: ConfigType | None = None,
) -> Any:
    """Define a config. `config_type` is the type in Apache Kafka if it is not the usual type of the field's values."""
    return field(default=default, metadata=key_metadata(name, minimum, maximum, config_type))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one node; immutable, created by `from_properties`."""

    node_id: int = _key("node.id", minimum=0)
    process_roles: tuple[str, ...] = _key("process.roles", ("broker", "controller"))
    rack: str | None = _key("broker.rack", None)
    log_dirs: tuple[str, ...] = _key("log.dirs", ("/tmp/kafka-logs",))
    metadata_log_dir: str | None = _key("metadata.log.dir", None)
    max_connections: int = _key("max.connections", 2147483647, minimum=0)
    max_connections_per_ip: int = _key("max.connections.per.ip", 2147483647, minimum=0)
    connections_max_idle_ms: int = _key("connections.max.idle.ms", 600_000, config_type=ConfigType.LONG)
    socket_request_max_bytes: int = _key("socket.request.max.bytes", 104_857_600, minimum=1)
    socket_send_buffer_bytes: int = _key("socket.send.buffer.bytes", 102_400, minimum=-1)
    socket_receive_buffer_bytes: int = _key("socket.receive.buffer.bytes", 102_400, minimum=-1)
    socket_listen_backlog_size: int = _key("socket.listen.backlog.size", 50, minimum=1)
    auto_create_topics_enable: bool = _key("auto.create.topics.enable", True)
    delete_topic_enable: bool = _key("delete.topic.enable", True)
    num_partitions: int = _key("num.partitions", 1, minimum=1)
    default_replication_factor: int = _key("default.replication.factor", 1, minimum=1, maximum=32767)
    queued_max_request_bytes: int = _key("queued.max.request.bytes", -1, minimum=-1, config_type=ConfigType.LONG)
    fetch_session_slots: int = _key("max.incremental.fetch.session.cache.slots", 1000, minimum=0)
    fetch_max_bytes: int = _key("fetch.max.bytes", 57_671_680, minimum=1024)
    max_request_partition_size_limit: int = _key("max.request.partition.size.limit", 2000, minimum=1)
    offsets_topic_num_partitions: int = _key("offsets.topic.num.partitions", 50, minimum=1)
    offsets_topic_replication_factor: int = _key(
        "offsets.topic.replication.factor", 3, minimum=1, config_type=ConfigType.SHORT
    )
    offsets_topic_segment_bytes: int = _key("offsets.topic.segment.bytes", 104_857_600, minimum=1)
    offsets_commit_timeout_ms: int = _key("offsets.commit.timeout.ms", 5000, minimum=1)
    offsets_retention_minutes: int = _key("offsets.retention.minutes", 10_080, minimum=1)
    offsets_retention_check_interval_ms: int = _key(
        "offsets.retention.check.interval.ms", 600_000, minimum=1, config_type=ConfigType.LONG
    )
    offset_metadata_max_bytes: int = _key("offset.metadata.max.bytes", 4096)
    group_initial_rebalance_delay_ms: int = _key("group.initial.rebalance.delay.ms", 3000)
    group_min_session_timeout_ms: int = _key("group.min.session.timeout.ms", 6000)
    group_max_session_timeout_ms: int = _key("group.max.session.timeout.ms", 1_800_000)
    group_max_size: int = _key("group.max.size", 2147483647, minimum=1)
    controller_quorum_election_timeout_ms: int = _key("controller.quorum.election.timeout.ms", 1000, minimum=1)
    controller_quorum_election_backoff_max_ms: int = _key("controller.quorum.election.backoff.max.ms", 1000, minimum=1)
    controller_quorum_fetch_timeout_ms: int = _key("controller.quorum.fetch.timeout.ms", 2000, minimum=1)
    controller_quorum_request_timeout_ms: int = _key("controller.quorum.request.timeout.ms", 2000, minimum=1)
    broker_heartbeat_interval_ms: int = _key("broker.heartbeat.interval.ms", 2000, minimum=1)
    broker_session_timeout_ms: int = _key("broker.session.timeout.ms", 9000, minimum=1)
    initial_broker_registration_timeout_ms: int = _key("initial.broker.registration.timeout.ms", 60_000, minimum=1)
    replica_selector_class: str | None = _key("replica.selector.class", None)
    replica_lag_time_max_ms: int = _key("replica.lag.time.max.ms", 30_000, minimum=1, config_type=ConfigType.LONG)
    replica_fetch_wait_max_ms: int = _key("replica.fetch.wait.max.ms", 500, minimum=0)
    replica_fetch_min_bytes: int = _key("replica.fetch.min.bytes", 1, minimum=0)
    replica_fetch_max_bytes: int = _key("replica.fetch.max.bytes", 1_048_576, minimum=1)
    replica_fetch_response_max_bytes: int = _key("replica.fetch.response.max.bytes", 10_485_760, minimum=1)
    replica_fetch_backoff_ms: int = _key("replica.fetch.backoff.ms", 1000, minimum=0)
    replica_socket_timeout_ms: int = _key("replica.socket.timeout.ms", 30_000, minimum=1)
    replication_quota_window_num: int = _key("replication.quota.window.num", 11, minimum=1)
    replication_quota_window_size_seconds: int = _key("replication.quota.window.size.seconds", 1, minimum=1)
    auto_leader_rebalance_enable: bool = _key("auto.leader.rebalance.enable", True)
    leader_imbalance_check_interval_seconds: int = _key(
        "leader.imbalance.check.interval.seconds", 300, minimum=1, config_type=ConfigType.LONG
    )
    leader_imbalance_per_broker_percentage: int = _key("leader.imbalance.per.broker.percentage", 10, minimum=0)
    metadata_log_max_record_bytes_between_snapshots: int = _key(
        "metadata.log.max.record.bytes.between.snapshots", 20 * 1024 * 1024, minimum=1, config_type=ConfigType.LONG
    )
    metadata_log_segment_bytes: int = _key("metadata.log.segment.bytes", 1_073_741_824, minimum=8 * 1024 * 1024)
    metadata_log_segment_ms: int = _key("metadata.log.segment.ms", 604_800_000, minimum=1, config_type=ConfigType.LONG)
    metadata_log_max_snapshot_interval_ms: int = _key(
        "metadata.log.max.snapshot.interval.ms", 3_600_000, minimum=0, config_type=ConfigType.LONG
    )
    metadata_max_retention_bytes: int = _key(
        "metadata.max.retention.bytes", 100 * 1024 * 1024, minimum=-1, config_type=ConfigType.LONG
    )
    metadata_max_retention_ms: int = _key(
        "metadata.max.retention.ms", 604_800_000, minimum=-1, config_type=ConfigType.LONG
    )
    log_retention_check_interval_ms: int = _key(
        "log.retention.check.interval.ms", 300_000, minimum=1, config_type=ConfigType.LONG
    )
    log_cleaner_enable: bool = _key("log.cleaner.enable", True)
    log_cleaner_backoff_ms: int = _key("log.cleaner.backoff.ms", 15_000, minimum=0, config_type=ConfigType.LONG)
    log_cleaner_dedupe_buffer_size: int = _key(
        "log.cleaner.dedupe.buffer.size", 134_217_728, minimum=1, config_type=ConfigType.LONG
    )
    log_cleaner_io_max_bytes_per_second: float = _key(
        "log.cleaner.io.max.bytes.per.second", sys.float_info.max, minimum=1
    )
    metrics_listeners: tuple[str, ...] = _key("headrace.metrics.listeners", ())
    records_validation: str = _key("headrace.records.validation", STRICT)
    producer_id_expiration_ms: int = _key("producer.id.expiration.ms", 86_400_000, minimum=1)

    listeners: tuple[Listener, ...] = ()
    advertised_listeners: tuple[Listener, ...] = ()
    controller_listeners: tuple[Listener, ...] = ()
    controller_listener_names: tuple[str, ...] = ()
    inter_broker_listener: str = "PLAINTEXT"
    voters: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """The voters of the quorum; empty if a broker must first find them with `bootstrap_servers`."""
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    log_properties: Mapping[str, str] = field(default_factory=dict)
    log_defaults: LogConfig = field(default_factory=LogConfig)
    originals: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parse Kafka's properties. Raises ConfigError with all errors.

        The returned config and the ConfigError both have `.warnings`.
        """
        return _Parser(properties).parse()

    @property
    def metadata_dir(self) -> str:
        """The directory that holds `__cluster_metadata-0` (metadata.log.dir, else the first log dir)."""
        return self.metadata_log_dir or self.log_dirs[0]

    @property
    def all_dirs(self) -> tuple[str, ...]:
        """All data directories without duplicates; the log dirs come first."""
        return tuple(dict.fromkeys((*self.log_dirs, self.metadata_dir)))

    def described(self) -> list[DescribedConfig]:
        """Return every key of the broker with its effective value, for DescribeConfigs."""
        return [
            *(self._described_field(name, item) for name, item in _FIELDS.items()),
            *(self._described_address(name, type_) for name, type_ in _ADDRESS_KEYS.items()),
            *(self._described_log_key(name) for name in LOG_KEYS),
        ]

    def _described_field(self, name: str, item: dataclasses.Field[Any]) -> DescribedConfig:
        value = getattr(self, item.name)
        default = None if item.default is dataclasses.MISSING else _value_text(item.default)
        return DescribedConfig(name, _value_text(value), value_type(item), default, is_set=name in self.originals)

    def _described_address(self, name: str, type_: ConfigType) -> DescribedConfig:
        is_set = name in self.originals or (name == "broker.id" and "node.id" in self.originals)
        defaults = {
            "broker.id": str(self.node_id),
            "controller.listener.names": ",".join(self.controller_listener_names),
        }
        default = _ADDRESS_DEFAULTS.get(name)
        value = self.originals.get(name, defaults.get(name, default))
        return DescribedConfig(name, value, type_, default, is_set=is_set)

    def _described_log_key(self, name: str) -> DescribedConfig:
        """Describe one key of a log config.

        Some configs have several keys with different units, for example log.retention.ms, log.retention.minutes and
        log.retention.hours. As in Kafka, only the last of these keys has a default value.
        """
        key, factor = LOG_KEYS[name]
        has_default = name == key.broker_names[-1][0]
        default = format_value(key.default if factor == 1 else key.default // factor) if has_default else None
        value = self.originals.get(name, default)
        type_ = key.type if factor == 1 else ConfigType.INT
        names = [broker_name for broker_name, _ in key.broker_names]
        synonyms = tuple(names[names.index(name) + 1 :])
        return DescribedConfig(name, value, type_, default, is_set=name in self.originals, synonyms=synonyms)


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One broker config, as DescribeConfigs returns it.

    `value` is None if the config has no value, and `default` is None if it has no default. `is_set` is true if the
    properties file contains the config. If the config has no value, its first synonym with a value applies. For
    example, the synonyms of log.retention.ms are log.retention.minutes and log.retention.hours.
    """

    name: str
    value: str | None
    type: ConfigType
    default: str | None
    is_set: bool
    synonyms: tuple[str, ...] = ()


def _value_text(value: object) -> str | None:
    if value is None:
        return None
    return format_value(list(value) if isinstance(value, tuple) else value)


_FIELDS = {item.metadata["key"]: item for item in dataclasses.fields(BrokerConfig) if "key" in item.metadata}
# Keys that are parsed into listeners, voters and directories, not into one field per key.
_ADDRESS_KEYS = {
    "listeners": ConfigType.LIST,
    "advertised.listeners": ConfigType.LIST,
    "listener.security.protocol.map": ConfigType.STRING,
    "controller.listener.names": ConfigType.LIST,
    "controller.quorum.voters": ConfigType.LIST,
    "controller.quorum.bootstrap.servers": ConfigType.LIST,
    "broker.id": ConfigType.INT,
    "log.dir": ConfigType.LIST,
    "inter.broker.listener.name": ConfigType.STRING,
    "security.inter.broker.protocol": ConfigType.STRING,
}
_ADDRESS_DEFAULTS = {
    "listeners": DEFAULT_LISTENERS,
    "listener.security.protocol.map": DEFAULT_PROTOCOL_MAP,
    "controller.quorum.voters": "",
    "controller.quorum.bootstrap.servers": "",
    "broker.id": "-1",
    "log.dir": "/tmp/kafka-logs",
    "security.inter.broker.protocol": "PLAINTEXT",
}
_BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
LOG_KEYS = {name: (key, factor) for key in TOPIC_CONFIGS.values() for name, factor in key.broker_names}
KNOWN_KEYS = frozenset((*_FIELDS, *_ADDRESS_KEYS, *LOG_KEYS))


def _normalized_path(path: str) -> str:
    return str(PurePosixPath("/", path.lstrip("/")) if path.startswith("/") else PurePosixPath(path))


class _Parser:
    """Parses the properties and collects all errors instead of stopping at the first one."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = {key: value.strip() for key, value in properties.items()}
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.bootstrap_servers: tuple[tuple[str, int], ...] = ()

    def parse(self) -> BrokerConfig:
        self._apply_synonyms()
        self._warn_about_unknown()
        values = self._fields()
        node_id = values.get("node_id")
        roles = values.get("process_roles") or ("broker", "controller")
        listeners = parse_listener_configs(self.properties, roles, self.errors)
        self._check_security(listeners.used_protocols)
        log_defaults = self._log_config()
        self.bootstrap_servers = parse_addresses(
            _BOOTSTRAP_SERVERS, self.properties.get(_BOOTSTRAP_SERVERS, ""), self.errors
        )
        voters = self._voters(node_id, roles) if isinstance(node_id, int) else {}
        if isinstance(node_id, int) and (listeners.controllers or "process.roles" not in self.properties):
            self._check_own_address(node_id, voters, listeners.controllers)
        self._check_roles(roles)
        self._check_selector(values.get("replica_selector_class"))
        self._check_records_validation(values.get("records_validation", STRICT))
        if self.errors:
            raise ConfigError(self.errors, tuple(self.warnings))
        assert log_defaults is not None
        return BrokerConfig(
            **values,
            listeners=listeners.listeners,
            advertised_listeners=listeners.advertised,
            controller_listeners=listeners.controllers,
            controller_listener_names=listeners.controller_names,
            inter_broker_listener=listeners.inter_broker,
            voters=voters,
            bootstrap_servers=self.bootstrap_servers,
            log_properties={key: value for key, value in self.properties.items() if key in LOG_KEYS},
            log_defaults=log_defaults,
            originals=self.properties,
            warnings=tuple(self.warnings),
        )

    def _apply_synonyms(self) -> None:
        broker_id, node_id = self.properties.get("broker.id"), self.properties.get("node.id")
        if broker_id is not None and broker_id != self.properties.setdefault("node.id", broker_id):
            self.errors.append(f"broker.id={broker_id}: differs from node.id={node_id}; remove broker.id")
        log_dir = self.properties.get("log.dir")
        if log_dir is not None and log_dir != self.properties.setdefault("log.dirs", log_dir):
            self.warnings.append("log.dir is ignored because log.dirs is set")

    def _warn_about_unknown(self) -> None:
        ignored: list[str] = []
        for key in self.properties:
            if key in KNOWN_KEYS or is_security_key(key):
                continue
            if key in IGNORED_KEYS or key.startswith(("listener.name.", "metric.reporters")):
                ignored.append(key)
                continue
            similar = nearest_key(key, (*KNOWN_KEYS, *PROTECTING_KEYS))
            hint = f"; did you mean {similar}?" if similar else ""
            self.warnings.append(f"{key} is not a broker config and is ignored{hint}")
        if ignored:
            self.warnings.append(f"ignored Kafka configs that have no effect in this broker: {', '.join(ignored)}")

    def _check_security(self, used_protocols: Mapping[str, str]) -> None:
        ignored = check_security_keys(self.properties, used_protocols, self.errors)
        if ignored:
            self.warnings.append(f"ignored, because they protect no listener of this node: {', '.join(ignored)}")

    def _fields(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, item in _FIELDS.items():
            text = self.properties.get(name)
            if text is None:
                if item.default is dataclasses.MISSING:
                    self.errors.append(f"{name} is required and has no default: set it, for example {name}=1")
                continue
            try:
                values[item.name] = parse_value(name, text, item)
            except ValueError as error:
                self.errors.append(str(error))
        self._normalize_directories(values)
        return values

    def _normalize_directories(self, values: dict[str, Any]) -> None:
        """Normalize directory paths as Java does: no trailing slash, no double slashes."""
        if metadata_dir := values.get("metadata_log_dir"):
            values["metadata_log_dir"] = _normalized_path(metadata_dir)
        log_dirs = values.get("log_dirs", ())
        normalized = tuple(map(_normalized_path, log_dirs))
        if len(set(normalized)) < len(normalized):
            self.errors.append(f"log.dirs={','.join(log_dirs)}: a directory is listed twice")
        if normalized:
            values["log_dirs"] = normalized

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

    def _voters(self, node_id: int, roles: tuple[str, ...]) -> dict[int, tuple[str, int]]:
        """Return the voters of the quorum; without configured voters, a controller is the only voter.

        A broker that has only bootstrap servers finds the voters when it starts.
        """
        text = self.properties.get("controller.quorum.voters")
        if not text and self.bootstrap_servers:
            if "controller" not in roles:
                return {}
            if len(self.bootstrap_servers) == 1:
                return {node_id: self.bootstrap_servers[0]}
            self.errors.append(
                f"{_BOOTSTRAP_SERVERS}={self.properties[_BOOTSTRAP_SERVERS]}: a controller needs the node ids of the "
                "voters, because the quorum is static; write controller.quorum.voters=1@host:port,... instead"
            )
            return {}
        if not text:
            if "controller" not in roles:
                self.errors.append("controller.quorum.voters is required for a broker that is not a controller")
            return {node_id: ("", 0)}
        voters = parse_voters(text, self.errors)
        if "controller" in roles and voters and node_id not in voters:
            self.errors.append(
                f"controller.quorum.voters={text}: node {node_id} is a controller and must be one of the voters"
            )
        if "controller" not in roles and node_id in voters:
            self.errors.append(
                f"controller.quorum.voters={text}: node {node_id} is a voter, so process.roles must contain controller"
            )
        return voters

    def _check_own_address(
        self, node_id: int, voters: Mapping[int, tuple[str, int]], listeners: tuple[Listener, ...]
    ) -> None:
        """If this node is a voter, check that it has a controller listener at the port in controller.quorum.voters."""
        port = voters[node_id][1] if node_id in voters else 0
        ports = [listener.port for listener in listeners]
        if self.bootstrap_servers and not self.properties.get("controller.quorum.voters"):
            if ports and port and port not in ports:
                self.errors.append(
                    f"{_BOOTSTRAP_SERVERS}={self.properties[_BOOTSTRAP_SERVERS]}: port {port} is not the port of this "
                    "node's controller listener; if the cluster has several controllers, set controller.quorum.voters "
                    "instead"
                )
            return
        if len(voters) < 2 or node_id not in voters:
            return
        if not listeners:
            self.errors.append(f"listeners has no listener in controller.listener.names: add CONTROLLER://host:{port}")
        elif port not in ports:
            self.errors.append(
                f"controller.quorum.voters: node {node_id} has port {port}, but its listener "
                f"{listeners[0].name} has port {listeners[0].port}: configure the same port in both"
            )

    def _check_selector(self, name: str | None) -> None:
        if name is not None and name not in SELECTORS:
            self.errors.append(
                f"replica.selector.class={name}: not supported; use {next(iter(SELECTORS))}, or remove the key, so "
                "that consumers fetch from leaders only"
            )

    def _check_records_validation(self, value: str | None) -> None:
        if value not in _RECORDS_VALIDATIONS:
            self.errors.append(f"headrace.records.validation={value or ''}: expected strict or headers")

    def _check_roles(self, roles: object) -> None:
        wanted = set(roles)  # type: ignore[call-overload]
        if not wanted or not wanted <= {"broker", "controller"}:
            self.errors.append("process.roles must be broker, controller, or broker,controller")
