"""Variables: ``${provider:path:key}`` in a configuration stands for a value kept elsewhere.

``${env:NAME}``, ``${file:/etc/secrets.properties:key}`` and ``${directory:/run/secrets:filename}``. Configurations are
stored and shown with their variables; they are resolved where a connector or task runs. A variable whose provider or
key is unknown stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType

from headrace.api.errors import ConfigError
from headrace.plugins import registry
from headrace.plugins.config_providers import ConfigProvider

_VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
VARIABLE_SPLIT = re.compile(r"(\$\{[^}]*?:[^}]*?\})")
"""Splits a text into what stands between variables, and the variables."""


def unresolved_variables(properties: Mapping[str, str]) -> list[str]:
    """One line for each variable that is still there after resolving: nobody knew its provider or its key."""
    return [
        f"{found[0]} in {name} stands for nothing and is left as it is: see config.providers of the worker file"
        for name, text in properties.items()
        for found in _VARIABLE.finditer(text)
    ]


class ConfigResolver:
    """Resolves variables with the providers of a worker. Keep it for one piece of work, then `close` it."""

    def __init__(self, providers: Mapping[str, ConfigProvider]) -> None:
        self._providers = providers
        self.resolved_values: set[str] = set()
        """What variables stood for so far: the texts to mask in logs."""

    @classmethod
    def from_worker(cls, worker: Mapping[str, str]) -> ConfigResolver:
        """The providers that a worker's properties name in ``config.providers``. Raises ConfigError, ConfigErrors."""
        providers = {}
        for name in filter(None, (text.strip() for text in (worker.get("config.providers") or "").split(","))):
            prefix = f"config.providers.{name}."
            class_name = worker.get(prefix + "class")
            if not class_name:
                raise ConfigError(prefix + "class", None, "Missing: the class of a config provider")
            provider_class = registry.find("config_provider", class_name)
            parameters = {
                text[len(prefix) + len("param.") :]: value
                for text, value in worker.items()
                if text.startswith(prefix + "param.")
            }
            provider = provider_class()
            provider.configure(provider_class.config_model.parse(parameters))
            providers[name] = provider
        return cls(providers)

    def resolve(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties with their variables replaced, once (what comes in is not looked at again)."""
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
    """A worker's own properties with variables replaced, but for ``plugin.path``, where none are allowed."""
    with ConfigResolver.from_worker(worker) as resolver:
        resolved = resolver.resolve(worker)
    if "plugin.path" in worker:
        resolved["plugin.path"] = worker["plugin.path"]
    return resolved
