"""The built-in config providers: properties files, directories, environment variables (KIP-297).

Like Kafka's providers, they set no time to live: values are read again only when a connector or task starts.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from headrace.api.config import Config, Importance, key
from headrace.api.config_provider import ConfigProvider
from headrace.api.errors import ConfigError

logger = logging.getLogger(__name__)


class PathsConfig(Config):
    """The configuration of FileConfigProvider and DirectoryConfigProvider."""

    allowed_paths: list[str] = key(
        "allowed.paths",
        default=[],
        doc="Absolute paths of the files and directories that may be read. If empty, all paths may be read.",
        importance=Importance.LOW,
    )


class _AllowedPaths:
    """The paths that ``allowed.paths`` permits."""

    def __init__(self, allowed: list[str]) -> None:
        for text in allowed:
            if not os.path.isabs(text) or not os.path.exists(text):
                raise ConfigError("allowed.paths", text, "Path must be absolute and exist")
        self._allowed = [Path(text).resolve() for text in allowed]

    def resolve(self, text: str) -> Path | None:
        """Return the resolved path. If the path is not permitted, log an error and return None."""
        path = Path(text).resolve()
        if self._allowed and not any(path.is_relative_to(allowed) for allowed in self._allowed):
            logger.error("The path %s is not permitted to be accessed: it is not below a path in allowed.paths", text)
            return None
        return path


class FileConfigProvider(ConfigProvider[PathsConfig]):
    """Reads values from Java properties files in UTF-8."""

    java_names = ("org.apache.kafka.common.config.provider.FileConfigProvider",)

    def configure(self, config: PathsConfig) -> None:
        """Apply ``allowed.paths``. Raises ConfigError."""
        self._paths = _AllowedPaths(config.allowed_paths)
        self._files: dict[Path, dict[str, str]] = {}

    def get(self, path: str, key: str) -> str | None:
        """Return the value of `key` in the properties file `path`. Raises ConfigError if the file cannot be read."""
        permitted = self._paths.resolve(path) if path else None
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


class DirectoryConfigProvider(ConfigProvider[PathsConfig]):
    """Reads files in a directory. The file name is the key, and the file content is the value."""

    java_names = ("org.apache.kafka.common.config.provider.DirectoryConfigProvider",)

    def configure(self, config: PathsConfig) -> None:
        """Apply ``allowed.paths``. Raises ConfigError."""
        self._paths = _AllowedPaths(config.allowed_paths)

    def get(self, path: str, key: str) -> str | None:
        """Return the content of the file `key` in the directory `path`. Raises ConfigError if reading it fails."""
        if not path or Path(key).name != key:
            return None
        permitted = self._paths.resolve(path)
        file = None if permitted is None else self._paths.resolve(str(permitted / key))
        if file is None or not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError("config.providers", str(file), f"Could not read file: {error}") from None


class EnvVarConfig(Config):
    """The configuration of EnvVarConfigProvider."""

    allowlist_pattern: str | None = key(
        "allowlist.pattern",
        default=None,
        doc="A regular expression that must match the whole name of a variable. If empty, all variables may be read.",
        importance=Importance.LOW,
    )


class EnvVarConfigProvider(ConfigProvider[EnvVarConfig]):
    """Reads environment variables of the worker."""

    java_names = ("org.apache.kafka.common.config.provider.EnvVarConfigProvider",)

    def configure(self, config: EnvVarConfig) -> None:
        """Apply ``allowlist.pattern``. Raises ConfigError."""
        try:
            self._allowed = re.compile(config.allowlist_pattern or ".*")
        except re.error as error:
            raise ConfigError("allowlist.pattern", config.allowlist_pattern, str(error)) from None

    def get(self, path: str, key: str) -> str | None:
        """Return the value of the environment variable `key`. Raises ConfigError if `path` is not empty."""
        if path:
            raise ConfigError("config.providers", path, "Path is not supported for EnvVarConfigProvider")
        return os.environ.get(key) if self._allowed.fullmatch(key) else None
