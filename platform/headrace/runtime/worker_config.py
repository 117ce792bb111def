"""The worker's configuration: Kafka Connect's keys, defaults and validation.

All errors are reported together. Each unknown key causes a warning with the most similar known key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.config_def import ConfigDef, unknown_key_warnings
from headrace.api.errors import ConfigError, ConfigErrors
from headrace.runtime.rest_config import Tls
from headrace.runtime.worker_keys import DISTRIBUTED, STANDALONE

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
_DISTRIBUTED_PREFIXES = ("config.storage.", "offset.storage.", "status.storage.")
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
    """A worker's configuration. `properties` contains the unparsed values, with variables resolved."""

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
        errors += _tls_errors(values, properties) + _signature_errors(values) + _topic_errors(values)
        if errors:
            raise ConfigErrors(errors)
        with_brokers = {"bootstrap.servers": ",".join(values["bootstrap.servers"]), **properties}
        return cls(with_brokers, values, tuple(_warnings(properties, DISTRIBUTED)))

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def embedded_broker(self) -> bool:
        """Whether the worker starts an embedded broker."""
        return not self.values["bootstrap.servers"]


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
                    Tls.of(properties, admin=key == "admin.listeners")
                except ValueError as error:
                    errors.append(ConfigError(key, listener, str(error)))
    return errors


def _signature_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check that this worker accepts the signatures of its own requests."""
    key, permitted = "inter.worker.signature.algorithm", values.get("inter.worker.verification.algorithms") or []
    if values.get(key) in permitted:
        return []
    return [ConfigError(key, values.get(key), "inter.worker.verification.algorithms must contain this algorithm")]


def _topic_errors(values: Mapping[str, Any]) -> list[ConfigError]:
    """Check that the internal topics are different ones."""
    keys = ("config.storage.topic", "offset.storage.topic", "status.storage.topic")
    errors: list[ConfigError] = []
    for number, key in enumerate(keys):
        same = next((other for other in keys[:number] if values.get(other) == values.get(key) is not None), None)
        if same is not None:
            errors.append(ConfigError(key, values[key], f"{same} is the same topic; set another one"))
    return errors


def _warnings(properties: Mapping[str, str], definition: ConfigDef) -> list[str]:
    warnings: list[str] = []
    unknown: list[str] = []
    for name in properties:
        if name in _IGNORED:
            warnings.append(f"Configuration key {name} is ignored: {_IGNORED[name]}")
        elif name in definition.keys or name in _PASSED_ON or name.startswith(_PREFIXES):
            continue
        elif definition is DISTRIBUTED and name.startswith(_DISTRIBUTED_PREFIXES):
            continue  # the key configures an internal topic
        elif definition is STANDALONE and (name in DISTRIBUTED.keys or name.startswith(_DISTRIBUTED_PREFIXES)):
            warnings.append(f"Configuration key {name} is ignored: it applies only to distributed workers")
        elif definition is DISTRIBUTED and name in STANDALONE.keys:
            warnings.append(f"Configuration key {name} is ignored: it applies only to standalone workers")
        else:
            unknown.append(name)
    return warnings + unknown_key_warnings(unknown, definition.keys)
