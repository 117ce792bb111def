"""Config providers: ``${provider:path:key}`` in a configuration stands for a value kept elsewhere.

``${env:NAME}``, ``${file:/etc/secrets.properties:key}`` and ``${directory:/run/secrets:filename}``. Configurations are
stored and shown with their variables; they are resolved where a connector or task runs. A variable whose provider or
key is unknown stays as it is written.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.api.plugin import Plugin

logger = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
VARIABLE_SPLIT = re.compile(r"(\$\{[^}]*?:[^}]*?\})")
"""Splits a text into what stands between variables, and the variables."""


class ConfigProvider(Plugin):
    """The base of config providers."""

    abstract = True

    def configure(self, config: Any) -> None:
        """Take the settings (``config.providers.<name>.param.*``). Raises ConfigError."""

    def get(self, path: str, key: str) -> str | None:
        """The value at that path ("" without one), None when there is none. Raises ConfigError."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `configure` took."""


class PathsConfig(Config):
    """Settings of the providers that read files."""

    allowed_paths: list[str] = key(
        "allowed.paths",
        default=[],
        doc="Absolute paths that alone may be read, with what is below them; none: every path.",
        importance=Importance.LOW,
    )


class _Paths:
    """The paths that may be read."""

    def __init__(self, allowed: list[str]) -> None:
        for text in allowed:
            if not os.path.isabs(text) or not os.path.exists(text):
                raise ConfigError("allowed.paths", text, "Path must be absolute and exist")
        self._allowed = [Path(text).resolve() for text in allowed]

    def permit(self, text: str) -> Path | None:
        """The real path, None (with an error in the log) when it may not be read."""
        path = Path(text).resolve()
        if self._allowed and not any(path.is_relative_to(allowed) for allowed in self._allowed):
            logger.error("The path %s is not permitted to be accessed: it is not below allowed.paths", text)
            return None
        return path


class FileConfigProvider(ConfigProvider):
    """Keys of Java properties files in UTF-8."""

    config_model = PathsConfig
    java_names = ("org.apache.kafka.common.config.provider.FileConfigProvider",)

    def configure(self, config: PathsConfig) -> None:
        """Take ``allowed.paths``. Raises ConfigError."""
        self._paths = _Paths(config.allowed_paths)
        self._files: dict[Path, dict[str, str]] = {}

    def get(self, path: str, key: str) -> str | None:
        """The value of a key in a properties file. Raises ConfigError when the file cannot be read."""
        permitted = self._paths.permit(path) if path else None
        if permitted is None:
            return None
        if permitted not in self._files:
            self._files[permitted] = _read_properties(permitted)
        return self._files[permitted].get(key)


def _read_properties(path: Path) -> dict[str, str]:
    import javaproperties

    try:
        with path.open(encoding="utf-8") as lines:
            return dict(javaproperties.load(lines))
    except (OSError, ValueError) as error:
        raise ConfigError("config.providers", str(path), f"Could not read properties from file: {error}") from None


class DirectoryConfigProvider(ConfigProvider):
    """Files of a directory: the name is the key, the whole content is the value."""

    config_model = PathsConfig
    java_names = ("org.apache.kafka.common.config.provider.DirectoryConfigProvider",)

    def configure(self, config: PathsConfig) -> None:
        """Take ``allowed.paths``. Raises ConfigError."""
        self._paths = _Paths(config.allowed_paths)

    def get(self, path: str, key: str) -> str | None:
        """The content of a file in a directory. Raises ConfigError when it cannot be read."""
        if not path or Path(key).name != key:
            return None
        permitted = self._paths.permit(path)
        file = None if permitted is None else self._paths.permit(str(permitted / key))
        if file is None or not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError("config.providers", str(file), f"Could not read file: {error}") from None


class EnvVarConfig(Config):
    """Settings of the provider of environment variables."""

    allowlist_pattern: str | None = key(
        "allowlist.pattern",
        default=None,
        doc="A regular expression that the names of variables must match as a whole; none: every name.",
        importance=Importance.LOW,
    )


class EnvVarConfigProvider(ConfigProvider):
    """Environment variables of the worker."""

    config_model = EnvVarConfig
    java_names = ("org.apache.kafka.common.config.provider.EnvVarConfigProvider",)

    def configure(self, config: EnvVarConfig) -> None:
        """Take ``allowlist.pattern``. Raises ConfigError."""
        try:
            self._allowed = re.compile(config.allowlist_pattern or ".*")
        except re.error as error:
            raise ConfigError("allowlist.pattern", config.allowlist_pattern, str(error)) from None

    def get(self, path: str, key: str) -> str | None:
        """The value of a variable. Raises ConfigError when a path is given."""
        if path:
            raise ConfigError("config.providers", path, "Path is not supported for EnvVarConfigProvider")
        return os.environ.get(key) if self._allowed.fullmatch(key) else None


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
        from headrace.plugins import registry

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
