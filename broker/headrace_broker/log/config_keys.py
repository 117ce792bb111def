"""What a configuration is: a name, a type, a default, a check, and the broker-level names that give its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


class ConfigType(IntEnum):
    """Type numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Source numbers of DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigError(ValueError):
    """A configuration name that does not exist, or a value it cannot have."""


Check = Callable[[Any], str | None]
"""Return what is wrong with a value, None when nothing is."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One configuration of a topic. `broker_names`: (name, factor to its unit), the first one set wins."""

    name: str
    type: ConfigType
    default: Any
    doc: str
    check: Check | None = None
    broker_names: tuple[tuple[str, int], ...] = ()

    def parse(self, text: str) -> Any:
        """Return the typed value. Raises ConfigError."""
        try:
            value = _PARSERS[self.type](text.strip())
        except (ValueError, KeyError):
            kind = self.type.name
            raise ConfigError(
                f"Invalid value {text} for configuration {self.name}: Not a value of type {kind}"
            ) from None
        problem = self.check(value) if self.check else None
        if problem:
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {problem}")
        return value


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value in force, where it comes from, and every other place that names it, in order of precedence."""

    key: ConfigKey
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def _parse_int(text: str) -> int:
    value = int(text)
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise ValueError(text)
    return value


def _parse_long(text: str) -> int:
    value = int(text)
    if not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise ValueError(text)
    return value


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: lambda text: {"true": True, "false": False}[text.lower()],
    ConfigType.STRING: str,
    ConfigType.INT: _parse_int,
    ConfigType.LONG: _parse_long,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: lambda text: [word.strip() for word in text.split(",")] if text else [],
}


def format_value(value: Any) -> str:
    """Return a typed value as Kafka prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)
