"""The config providers that come along: properties files, directories, environment variables (KIP-297).

None of them gives a value a time to live, as Apache's own do not: values are read anew when a connector or task starts.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.api.plugin import Plugin

logger = logging.getLogger(__name__)


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
