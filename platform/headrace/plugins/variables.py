"""Configuration variables: ``${provider:path:key}`` is replaced with a value from a config provider.

Examples: ``${env:NAME}``, ``${file:/etc/secrets.properties:key}``, ``${directory:/run/secrets:filename}``. Stored and
displayed configurations contain the variables; they are resolved when a connector or task starts. A variable whose
provider or key is unknown is left unchanged. A provider may return a value together with a time to live (KIP-297). The
value expires after this time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType

from headrace.api.config_provider import ConfigData, ConfigProvider
from headrace.api.errors import ConfigError
from headrace.data.value_replacer import ValueReplacer
from headrace.plugins import registry
from headrace.plugins.creation import create

_VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
VARIABLE_SPLIT = re.compile(r"(\$\{[^}]*?:[^}]*?\})")
"""Splits a string at its variables; in the result, ordinary text and variables alternate."""


@dataclass(frozen=True, slots=True)
class UnresolvedVariable:
    """An unresolved variable in the value of the configuration key `key`. `reason` says why it is unresolved."""

    key: str
    variable: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: variable {self.variable} is not resolved: {self.reason}"


def resolved_variables(original: str | None, text: str | None) -> list[tuple[str, str]]:
    """Return a pair (resolved value, variable) for each variable in the configuration value `original`.

    `text` is the same configuration value with resolved variables.
    """
    if original is None or text is None or original == text:
        return []
    parts = VARIABLE_SPLIT.split(original)
    pattern = "(.*?)".join(re.escape(part) for part in parts[::2])
    found = re.fullmatch(pattern, text, re.DOTALL)
    return [] if found is None else list(zip(found.groups(), parts[1::2], strict=True))


def variable_replacer(originals: Mapping[str, str | None], resolved: Mapping[str, str | None]) -> ValueReplacer:
    """Return a replacer that puts variables in place of resolved values, for error messages."""
    return ValueReplacer(
        {
            found: variable
            for name, text in resolved.items()
            for found, variable in resolved_variables(originals.get(name), text)
            if len(found) > 3 and found not in ("true", "false", "none", "null")
        }
    )


class VariableRestorer:
    """Replaces resolved values in task configurations with the variables, before the configurations are stored.

    As in Kafka Connect, if a key has the same value in the configurations of the task and the connector, the key gets
    the connector's original text with variables. In addition, a resolved secret (a value of one of the connector's
    `secret_keys`) is replaced wherever a task's configuration contains it, for example a password in a URL that the
    connector has built.
    """

    MIN_LENGTH = 4  # a shorter value of a secret is replaced only if it is the whole value of a key

    def __init__(
        self, originals: Mapping[str, str], resolved: Mapping[str, str], secret_keys: Collection[str] = ()
    ) -> None:
        self._originals = originals
        self._resolved = resolved
        secrets = {
            found: variable
            for key in secret_keys
            for found, variable in resolved_variables(originals.get(key), resolved.get(key))
            if found and found != variable
        }
        self._secrets = secrets
        long_enough = sorted((value for value in secrets if len(value) >= self.MIN_LENGTH), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, long_enough)) or "(?!)")

    def restore(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return a task's configuration with variables in place of resolved values."""
        return {key: self._restore(key, value) for key, value in config.items()}

    def _restore(self, key: str, value: str) -> str:
        original = self._originals.get(key)
        if original is not None and self._resolved.get(key) == value:
            return original
        if value in self._secrets:
            return self._secrets[value]
        return self._pattern.sub(lambda found: self._secrets[found[0]], value)


class ConfigResolver:
    """Resolves variables with the config providers of a worker. Call `close` after use."""

    def __init__(self, providers: Mapping[str, ConfigProvider]) -> None:
        self._providers = providers
        self.resolved_values: set[str] = set()
        """The values of all variables resolved so far, to be masked in logs."""
        self.ttl_ms: int | None = None
        """The shortest time to live of the values resolved so far, in ms; None if no value expires."""
        self.unresolved: list[UnresolvedVariable] = []
        """The variables that `resolve` has left unchanged, because their provider or key is unknown."""

    @classmethod
    def from_worker(cls, worker: Mapping[str, str]) -> ConfigResolver:
        """Create a resolver with the providers in ``config.providers``. `worker` contains the worker's properties.

        Raises ConfigError, ConfigErrors.
        """
        providers = {}
        for name in filter(None, (text.strip() for text in (worker.get("config.providers") or "").split(","))):
            prefix = f"config.providers.{name}."
            class_name = worker.get(prefix + "class")
            if not class_name:
                raise ConfigError(prefix + "class", None, f"The class of config provider {name} is not set")
            provider_class = registry.find("config_provider", class_name)
            parameters = {
                text[len(prefix) + len("param.") :]: value
                for text, value in worker.items()
                if text.startswith(prefix + "param.")
            }
            providers[name] = create(provider_class, parameters)
        return cls(providers)

    def resolve(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties with variables replaced; variables inside resolved values are not replaced."""
        return {name: self._resolve(name, text) if text is not None else text for name, text in properties.items()}

    def _resolve(self, name: str, text: str) -> str:
        return _VARIABLE.sub(lambda variable: self._value(name, variable), text) if "${" in text else text

    def _value(self, name: str, variable: re.Match[str]) -> str:
        provider_name, path, key = variable[1], variable[3] or "", variable[4]
        provider = self._providers.get(provider_name)
        if provider is None:
            reason = f"config.providers in the worker file does not contain {provider_name}"
            self.unresolved.append(UnresolvedVariable(name, variable[0], reason))
            return variable[0]
        try:
            found = provider.get(path, key)
        except ConfigError as error:
            raise ConfigError(name, variable[0], error.reason or str(error)) from error
        if found is None:
            place = f" in {path}" if path else ""
            reason = (
                f"config provider {provider_name} has no value for key {key}{place}, "
                "or its parameters do not permit access to it"
            )
            self.unresolved.append(UnresolvedVariable(name, variable[0], reason))
            return variable[0]
        if isinstance(found, ConfigData):
            self.ttl_ms = found.ttl_ms if self.ttl_ms is None else min(self.ttl_ms, found.ttl_ms)
            found = found.value
        self.resolved_values.add(found)
        return found

    def close(self) -> None:
        """Close the providers."""
        for provider in self._providers.values():
            provider.close()

    def __enter__(self) -> ConfigResolver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def resolve_worker(worker: Mapping[str, str]) -> tuple[dict[str, str], list[UnresolvedVariable]]:
    """Return a worker's properties with variables replaced, and the variables that could not be resolved.

    In ``plugin.path``, variables are not supported.
    """
    registry.use_plugin_path(worker.get("plugin.path"))
    with ConfigResolver.from_worker(worker) as resolver:
        resolved = resolver.resolve(worker)
    if "plugin.path" in worker:
        resolved["plugin.path"] = worker["plugin.path"]
    return resolved, [each for each in resolver.unresolved if each.key != "plugin.path"]
