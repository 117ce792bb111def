"""Configuration variables: ``${provider:path:key}`` is replaced with a value from a config provider.

Examples: ``${env:NAME}``, ``${file:/etc/secrets.properties:key}``, ``${directory:/run/secrets:filename}``. Stored and
displayed configurations contain the variables; they are resolved when a connector or task starts. A variable whose
provider or key is unknown is left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType

from headrace.api.config_provider import ConfigProvider
from headrace.api.errors import ConfigError
from headrace.plugins import registry
from headrace.plugins.creation import create

_VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
VARIABLE_SPLIT = re.compile(r"(\$\{[^}]*?:[^}]*?\})")
"""Splits a string at its variables; in the result, ordinary text and variables alternate."""


def unresolved_variables(properties: Mapping[str, str | None]) -> list[str]:
    """Return one warning for each variable that was not resolved because its provider or key is unknown."""
    return [
        f"{name}: variable {found[0]} is not resolved, its provider or key is unknown; "
        "check config.providers in the worker file"
        for name, text in properties.items()
        for found in _VARIABLE.finditer(text or "")
    ]


class ConfigResolver:
    """Resolves variables with the config providers of a worker; `close` it after use."""

    def __init__(self, providers: Mapping[str, ConfigProvider]) -> None:
        self._providers = providers
        self.resolved_values: set[str] = set()
        """The values of all variables resolved so far, to be masked in logs."""

    @classmethod
    def from_worker(cls, worker: Mapping[str, str]) -> ConfigResolver:
        """Create the providers in ``config.providers`` of a worker's properties. Raises ConfigError, ConfigErrors."""
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
        return {name: self._resolve(text) if text is not None else text for name, text in properties.items()}

    def _resolve(self, text: str) -> str:
        return _VARIABLE.sub(self._value, text) if "${" in text else text

    def _value(self, variable: re.Match[str]) -> str:
        provider = self._providers.get(variable[1])
        value = None if provider is None else provider.get(variable[3] or "", variable[4])
        if value is None:
            return variable[0]
        self.resolved_values.add(value)
        return value

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


def resolve_worker(worker: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's properties with variables replaced, except in ``plugin.path``, where they are not supported."""
    with ConfigResolver.from_worker(worker) as resolver:
        resolved = resolver.resolve(worker)
    if "plugin.path" in worker:
        resolved["plugin.path"] = worker["plugin.path"]
    return resolved
