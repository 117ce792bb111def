"""The worker's configuration: Kafka Connect's keys, defaults and validation.

All errors are reported together. Each unknown key causes a warning with the most similar known key. The brokers may
support topic configs that are not known here. A config of an internal topic therefore causes a warning only if it seems
to be misspelt.
"""

from __future__ import annotations

import posixpath  # os.path without the functions of os that do I/O
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.api.config_def import ConfigDef, nearest, unknown_key_warnings
from headrace.api.errors import ConfigError, ConfigErrors
from headrace.runtime.rest_config import tls_settings
from headrace.runtime.worker_keys import DISTRIBUTED, STANDALONE
from headrace_broker.security.tls_settings import TlsConfigError

OFFSETS_FILE = "connect.offsets"
"""The offsets file of a standalone worker in `headrace.data.dir`, if offset.storage.file.filename is not set.

It is the same file with and without the embedded broker, so that a source continues from its offsets if the user sets
bootstrap.servers later.
"""
CLIENT_PREFIXES = ("producer.", "consumer.", "admin.")
_PREFIXES = (
    "key.converter.",
    "value.converter.",
    "header.converter.",
    *CLIENT_PREFIXES,
    "config.providers.",
    "listeners.https.",
    "admin.listeners.https.",
    "ssl.",
    "sasl.",
)
_ADMIN_LISTENERS = ("admin.listeners",)
_PASSED_ON = frozenset(
    {
        "client.dns.lookup", "client.id", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
        "request.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms", "security.protocol", "ssl.client.auth",
        "connections.max.idle.ms", "send.buffer.bytes", "receive.buffer.bytes", "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
    }
)  # fmt: skip
_DISTRIBUTED_PREFIXES = ("config.storage.", "offset.storage.", "status.storage.")
_INTERNAL_TOPICS = ("config.storage.topic", "offset.storage.topic", "status.storage.topic")
_PROMETHEUS = "metrics are exposed in Prometheus' format at GET /metrics"
_JETTY_CLASSES = "rest.servlet.initializor.classes"
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


class WorkerConfigErrors(ConfigErrors):
    """All errors of a worker's configuration, with the warnings, because a misspelt key often explains an error."""

    def __init__(self, errors: Sequence[ConfigError], warnings: Sequence[str]) -> None:
        super().__init__(errors)
        self.warnings = tuple(warnings)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker's configuration. `properties` contains the unparsed values, with variables resolved."""

    properties: dict[str, str]
    values: dict[str, Any]
    warnings: tuple[str, ...]
    originals: dict[str, str] = field(default_factory=dict)
    """The unparsed values with variables; empty if the worker file has no variables."""

    @classmethod
    def standalone(cls, properties: Mapping[str, str]) -> WorkerConfig:
        """Parse and validate the properties. Raises ConfigErrors with all errors."""
        errors: list[ConfigError] = []
        try:
            values = STANDALONE.parse(properties)
        except ConfigErrors as found:
            errors += found.errors
            values = {name: value.value for name, value in STANDALONE.validate(properties).items()}
        errors += (
            _tls_errors(values, properties)
            + _credentials_errors(values)
            + _server_errors(properties)
            + _protocol_errors(properties)
            + _rest_errors(properties)
        )
        if errors:
            raise WorkerConfigErrors(errors, _warnings(properties, STANDALONE))
        if not values["offset.storage.file.filename"]:
            values["offset.storage.file.filename"] = posixpath.join(values["headrace.data.dir"], OFFSETS_FILE)
        return cls(dict(properties), values, tuple(_warnings(properties, STANDALONE)))

    @classmethod
    def distributed(cls, properties: Mapping[str, str]) -> WorkerConfig:
        """Parse and validate the properties of a distributed worker. Raises ConfigErrors with all errors."""
        errors: list[ConfigError] = []
        try:
            values = DISTRIBUTED.parse(properties)
        except ConfigErrors as found:
            errors += found.errors
            values = {name: value.value for name, value in DISTRIBUTED.validate(properties).items()}
        errors += (
            _tls_errors(values, properties)
            + _credentials_errors(values)
            + _signature_errors(values)
            + _topic_errors(values)
        )
        errors += (
            _server_errors(properties) + _protocol_errors(properties) + _rest_errors(properties) + _group_errors(values)
        )
        if errors:
            raise WorkerConfigErrors(errors, _warnings(properties, DISTRIBUTED))
        with_brokers = {"bootstrap.servers": ",".join(values["bootstrap.servers"]), **properties}
        return cls(with_brokers, values, tuple(_warnings(properties, DISTRIBUTED)))

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def embedded_broker(self) -> bool:
        """Whether the worker starts an embedded broker."""
        return not self.values["bootstrap.servers"]


def is_interceptor_key(client_key: str) -> bool:
    """Whether a client's key configures Java interceptors, for example Confluent's monitoring interceptors."""
    return client_key == "interceptor.classes" or client_key.startswith("confluent.monitoring.interceptor.")


def is_distributed(properties: Mapping[str, str]) -> bool:
    """Whether the properties contain a key that only a distributed worker has."""
    return "group.id" in properties or any(key in properties for key in _INTERNAL_TOPICS)


def worker_value(properties: Mapping[str, str], key: str) -> Any:
    """Return the typed value of one key in a worker's properties, or its default. Raises ConfigError."""
    definition = STANDALONE.keys.get(key) or DISTRIBUTED.keys[key]
    text = properties.get(key)
    return definition.default if text is None else definition.parse(text)


def _tls_errors(values: Mapping[str, Any], properties: Mapping[str, str]) -> list[ConfigError]:
    """Return the errors in the TLS settings of the https listeners."""
    errors: list[ConfigError] = []
    for key in ("listeners", "admin.listeners"):
        for listener in values.get(key) or ():
            if listener.lower().startswith("https://"):
                try:
                    tls_settings(properties, admin=key == "admin.listeners")
                except TlsConfigError as error:
                    errors.append(ConfigError(key, listener, str(error)))
    return errors


def _credentials_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check that the credentials file has an effect."""
    key = "rest.basic.auth.users.file"
    if values.get(key) is None or values.get("rest.extension.classes"):
        return []
    text = "has no effect without rest.extension.classes=BasicAuthSecurityRestExtension; set both, or remove the key"
    return [ConfigError(key, values[key], text)]


def _signature_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check that this worker accepts the signatures of its own requests."""
    key, permitted = "inter.worker.signature.algorithm", values.get("inter.worker.verification.algorithms") or []
    if values.get(key) in permitted:
        return []
    return [ConfigError(key, values.get(key), "inter.worker.verification.algorithms must contain this algorithm")]


def _rest_errors(properties: Mapping[str, str]) -> list[ConfigError]:
    """Reject keys whose neglect would open the REST API: a host without `listeners`, and Confluent's authentication."""
    if properties.get(_JETTY_CLASSES, "").strip():
        reason = "Java classes cannot be loaded; set rest.extension.classes=BasicAuthSecurityRestExtension"
        return [ConfigError(_JETTY_CLASSES, properties[_JETTY_CLASSES], reason)]
    host = properties.get("rest.host.name", "").strip()
    if not host or properties.get("listeners", "").strip():
        return []
    port = properties.get("rest.port", "").strip() or "8083"
    reason = (
        "this key was removed in Kafka 3.0, and without it the REST API would accept connections on all addresses; set "
        f"listeners=http://{host}:{port}"
    )
    return [ConfigError("rest.host.name", host, reason)]


def _protocol_errors(properties: Mapping[str, str]) -> list[ConfigError]:
    """Reject a security protocol other than PLAINTEXT: the worker would connect without this protection."""
    key = "security.protocol"
    protocol = properties.get(key, "").strip().upper()
    if protocol in ("", "PLAINTEXT"):
        return []
    return [ConfigError(key, protocol, "not supported yet; use PLAINTEXT")]


def _server_errors(properties: Mapping[str, str]) -> list[ConfigError]:
    """Check the syntax of bootstrap.servers."""
    text = properties.get("bootstrap.servers")
    if text is None or not text.strip():
        return []
    from headrace_broker.client.config_values import parse_servers

    found: list[str] = []
    parse_servers(text, found)
    reasons = "; ".join(message.partition(": ")[2] for message in found)
    return [ConfigError("bootstrap.servers", text, f"{reasons}; set host:port[,host:port...]")] if found else []


def _group_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check the settings of the group membership."""
    errors: list[ConfigError] = []
    if values.get("bootstrap.servers") == []:
        errors.append(ConfigError("bootstrap.servers", "", "set host:port[,host:port...] of the brokers"))
    heartbeat_ms, session_ms = values.get("heartbeat.interval.ms"), values.get("session.timeout.ms")
    if isinstance(heartbeat_ms, int) and isinstance(session_ms, int) and heartbeat_ms >= session_ms:
        text = f"must be less than session.timeout.ms={session_ms}, usually at most a third of it"
        errors.append(ConfigError("heartbeat.interval.ms", heartbeat_ms, text))
    return errors


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TOPIC_NAME_RULE = "a topic name has 1 to 249 letters, digits, dots, underscores or hyphens"


def is_topic_name(name: str) -> bool:
    """Whether brokers accept a topic with this name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def _topic_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check that the internal topics have different names, and that brokers accept these names."""
    keys = _INTERNAL_TOPICS
    errors: list[ConfigError] = []
    for number, key in enumerate(keys):
        same = next((other for other in keys[:number] if values.get(other) == values.get(key) is not None), None)
        if same is not None:
            errors.append(ConfigError(key, values[key], f"{same} is the same topic; set another one"))
        name = values.get(key)
        if name and not is_topic_name(name):
            errors.append(ConfigError(key, name, TOPIC_NAME_RULE))
    return errors


def _warnings(properties: Mapping[str, str], definition: ConfigDef) -> list[str]:
    warnings: list[str] = []
    unknown: list[str] = []
    for name in properties:
        if name.startswith(CLIENT_PREFIXES) and is_interceptor_key(name.partition(".")[2]):
            warnings.append(f"Configuration key {name} is ignored: headrace's clients do not run Java interceptors")
        elif name in _IGNORED:
            warnings.append(f"Configuration key {name} is ignored: {_IGNORED[name]}")
        elif name in definition.keys or name in _PASSED_ON:
            continue
        elif name.startswith("admin.") and "." not in name.removeprefix("admin.") and nearest(name, _ADMIN_LISTENERS):
            unknown.append(name)
        elif name.startswith(_PREFIXES):
            continue
        elif definition is DISTRIBUTED and name.startswith(_DISTRIBUTED_PREFIXES):
            warnings += _topic_config_warnings(name)
        elif definition is STANDALONE and (name in DISTRIBUTED.keys or name.startswith(_DISTRIBUTED_PREFIXES)):
            warnings.append(f"Configuration key {name} is ignored: it applies only to distributed workers")
        elif definition is DISTRIBUTED and name in STANDALONE.keys:
            warnings.append(f"Configuration key {name} is ignored: it applies only to standalone workers")
        else:
            unknown.append(name)
    return warnings + unknown_key_warnings(unknown, definition.keys)


def _topic_config_warnings(name: str) -> list[str]:
    """Return a warning if a key of an internal topic is similar to a known key, but not equal to one."""
    from headrace_broker.log.topic_configs import TOPIC_CONFIGS

    prefix = next(each for each in _DISTRIBUTED_PREFIXES if name.startswith(each))
    config = name.removeprefix(prefix)
    known = ("topic", "partitions", "replication.factor", *TOPIC_CONFIGS)
    guess = None if config in known else nearest(config, known)
    if guess is None:
        return []
    return [f"Configuration key {name} sets the unknown topic config {config}; did you mean {prefix}{guess}?"]
