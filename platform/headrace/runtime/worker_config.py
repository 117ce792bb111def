"""The worker's configuration: Kafka Connect's keys, defaults and validation, for standalone workers.

All errors are reported together. Each unknown key causes a warning with the most similar known key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, unknown_key_warnings
from headrace.api.errors import ConfigError, ConfigErrors
from headrace.plugins.creation import DEFAULT_CONVERTERS
from headrace.runtime.override_policy import POLICIES, known_policy
from headrace.runtime.rest_config import Listener, Tls, header_rules

ISOLATIONS = ("process", "connector", "thread")
_BOOL, _STRING, _LONG, _LIST, _CLASS = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.LONG,
    ConfigType.LIST,
    ConfigType.CLASS,
)


def _not_negative(value: Any) -> None:
    if value is not None and value < 0:
        raise ValueError("Value must be at least 0")


def _isolation(value: Any) -> None:
    if value not in ISOLATIONS:
        raise ValueError(f"String must be one of: {', '.join(ISOLATIONS)}")


def _policy(value: Any) -> None:
    if value is not None and known_policy(value) is None:
        raise ValueError(f"String must be one of: {', '.join(POLICIES)}")


def _listeners(values: Any) -> None:
    for value in values or ():
        Listener.parse(value)


def _one_listener_at_least(values: Any) -> None:
    if not values:
        raise ValueError("At least one listener is required")


def _headers(value: Any) -> None:
    header_rules(value or "")


def _no_extensions(values: Any) -> None:
    if values:
        raise ValueError(
            "REST extensions are Java classes, which are not supported. They are not ignored, because without an "
            "authentication extension the REST API would be open. Remove the key, and protect the REST API otherwise"
        )


def _key(name: str, type_: ConfigType, default: Any, doc: str, *validators: Any) -> ConfigKey:
    importance = Importance.HIGH if default is REQUIRED else Importance.LOW
    return ConfigKey(name, type_, default, doc, importance, validators=tuple(validators))


STANDALONE = ConfigDef(
    [
        _key("bootstrap.servers", _LIST, None, "Brokers. If unset, a standalone worker starts an embedded broker."),
        _key("key.converter", _CLASS, REQUIRED, "Converter of record keys."),
        _key("value.converter", _CLASS, REQUIRED, "Converter of record values."),
        _key("header.converter", _CLASS, DEFAULT_CONVERTERS["header.converter"], "Converter of record headers."),
        _key("offset.storage.file.filename", _STRING, None, "The file in which source offsets are stored."),
        _key("offset.flush.interval.ms", _LONG, 60_000, "Interval between offset commits, in ms.", _not_negative),
        _key("offset.flush.timeout.ms", _LONG, 5_000, "Timeout of an offset commit, in ms.", _not_negative),
        _key("task.shutdown.graceful.timeout.ms", _LONG, 5_000, "Timeout for tasks to stop, in ms.", _not_negative),
        _key("plugin.path", _LIST, None, "Directories with plug-ins."),
        _key("plugin.discovery", _STRING, "hybrid_warn", "Accepted but ignored; plug-ins are found by entry points."),
        _key("config.providers", _LIST, [], "Names of config providers."),
        _key(
            "connector.client.config.override.policy",
            _STRING,
            "All",
            "The client overrides that connectors may set: All, None, Principal or Allowlist.",
            _policy,
        ),
        _key("connector.client.config.override.allowlist", _LIST, [], "Permitted keys of the policy Allowlist."),
        _key("topic.creation.enable", _BOOL, True, "Apply topic.creation.* of source connectors."),
        _key("topic.tracking.enable", _BOOL, True, "Track the topics that connectors use."),
        _key("topic.tracking.allow.reset", _BOOL, True, "Allow requests to reset the tracked topics."),
        _key("listeners", _LIST, ["http://:8083"], "REST listeners.", _one_listener_at_least, _listeners),
        _key("rest.advertised.host.name", _STRING, None, "Host in the worker's id."),
        _key("rest.advertised.port", ConfigType.INT, None, "Port in the worker's id."),
        _key("rest.advertised.listener", _STRING, None, "http or https."),
        _key("access.control.allow.origin", _STRING, "", "CORS origins."),
        _key("access.control.allow.methods", _STRING, "", "CORS methods."),
        _key("response.http.headers.config", _STRING, "", "Extra response headers.", _headers),
        _key("admin.listeners", _LIST, None, "Listeners of the admin endpoints.", _listeners),
        _key("rest.extension.classes", _LIST, [], "REST extensions; not supported, must be empty.", _no_extensions),
        _key(
            "task.isolation",
            _STRING,
            "process",
            "process: one process per task; connector: one process for all tasks of a connector; thread: all tasks run "
            "in the worker process.",
            _isolation,
        ),
        _key("headrace.data.dir", _STRING, "headrace-data", "Directory of the embedded broker and the offsets file."),
        _key(
            "headrace.static.members",
            _BOOL,
            False,
            "Use static membership for sink tasks, so that they continue immediately after a crash instead of after "
            "session.timeout.ms. Do not set it if another worker runs a connector of the same name. The default is "
            "true with the embedded broker.",
        ),
        _key("connector.validation.timeout.ms", _LONG, 60_000, "Timeout of a call to a connector, in ms."),
    ]
)
_PREFIXES = (
    "key.converter.",
    "value.converter.",
    "header.converter.",
    "producer.",
    "consumer.",
    "admin.",
    "config.providers.",
    "listeners.https.",
    "admin.listeners.https.",
    "ssl.",
    "sasl.",
)
_PASSED_ON = frozenset(
    {
        "client.dns.lookup", "client.id", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
        "request.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms", "security.protocol", "ssl.client.auth",
        "connections.max.idle.ms", "send.buffer.bytes", "receive.buffer.bytes",
        "socket.connection.plugins.timeout.ms", "socket.connection.plugins.timeout.max.ms",
    }
)  # fmt: skip
_DISTRIBUTED = (
    "group.id",
    "config.storage.",
    "offset.storage.",
    "status.storage.",
    "connect.protocol",
    "inter.worker.",
    "exactly.once.source.support",
    "scheduled.rebalance.max.delay.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "rebalance.timeout.ms",
    "worker.sync.timeout.ms",
    "worker.unsync.backoff.ms",
)
_PROMETHEUS = "metrics are exposed in Prometheus' format at GET /metrics"
_ONE_VERSION = "only one version of each plug-in is installed"
_IGNORED = {
    "metric.reporters": _PROMETHEUS,
    "metrics.num.samples": _PROMETHEUS,
    "metrics.recording.level": _PROMETHEUS,
    "metrics.sample.window.ms": _PROMETHEUS,
    "key.converter.plugin.version": _ONE_VERSION,
    "value.converter.plugin.version": _ONE_VERSION,
    "header.converter.plugin.version": _ONE_VERSION,
    "internal.key.converter": "it was removed in Kafka 3.0",
    "internal.value.converter": "it was removed in Kafka 3.0",
    "rest.host.name": "it was removed in Kafka 3.0; use listeners",
    "rest.port": "it was removed in Kafka 3.0; use listeners",
}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A standalone worker's configuration. `properties` contains the unparsed values, with variables resolved."""

    properties: dict[str, str]
    values: dict[str, Any]
    warnings: tuple[str, ...]

    @classmethod
    def standalone(cls, properties: Mapping[str, str]) -> WorkerConfig:
        """Parse and validate the properties. Raises ConfigErrors with all errors."""
        errors: list[ConfigError] = []
        try:
            values = STANDALONE.parse(properties)
        except ConfigErrors as found:
            errors += found.errors
            values = {name: value.value for name, value in STANDALONE.validate(properties).items()}
        if (
            values.get("bootstrap.servers") is not None
            and not properties.get("offset.storage.file.filename", "").strip()
        ):
            errors.append(ConfigError("offset.storage.file.filename", None, "the file for source offsets must be set"))
        errors += _tls_errors(values, properties)
        if errors:
            raise ConfigErrors(errors)
        return cls(dict(properties), values, tuple(_warnings(properties)))

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def embedded_broker(self) -> bool:
        """Whether the worker starts an embedded broker."""
        return not self.values["bootstrap.servers"]


def worker_value(properties: Mapping[str, str], key: str) -> Any:
    """Return the typed value of one key in a worker's properties, or its default. Raises ConfigError."""
    definition = STANDALONE.keys[key]
    text = properties.get(key)
    return definition.default if text is None else definition.parse(text)


def _tls_errors(values: Mapping[str, Any], properties: Mapping[str, str]) -> list[ConfigError]:
    """What the https listeners lack."""
    errors: list[ConfigError] = []
    for key in ("listeners", "admin.listeners"):
        for listener in values.get(key) or ():
            if listener.lower().startswith("https://"):
                try:
                    Tls.of(properties, admin=key == "admin.listeners")
                except ValueError as error:
                    errors.append(ConfigError(key, listener, str(error)))
    return errors


def _warnings(properties: Mapping[str, str]) -> list[str]:
    warnings: list[str] = []
    unknown: list[str] = []
    for name in properties:
        if name in _IGNORED:
            warnings.append(f"Configuration key {name} is ignored: {_IGNORED[name]}")
        elif name in STANDALONE.keys or name in _PASSED_ON or name.startswith(_PREFIXES):
            continue
        elif name.startswith(_DISTRIBUTED):
            warnings.append(f"Configuration key {name} is ignored: it applies only to distributed workers")
        else:
            unknown.append(name)
    return warnings + unknown_key_warnings(unknown, STANDALONE.keys)
