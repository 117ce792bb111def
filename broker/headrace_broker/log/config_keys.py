"""Defines `ConfigKey`: a config's name, type, default, validator, and the broker configs that set its default."""

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
    """Configuration types, with their numbers in DescribeConfigs."""

    UNKNOWN = 0
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
    """Configuration sources, with their numbers in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class InvalidConfigError(ValueError):
    """A configuration has an unknown name or an invalid value."""


Check = Callable[[Any], str | None]
"""A validator: returns an error message for an invalid value, None for a valid one."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One topic configuration.

    `broker_names` lists the broker configurations that set the default, as (name, factor). The factor converts the
    broker value to the topic configuration's unit. The first configured name takes precedence.
    """

    name: str
    type: ConfigType
    default: Any
    doc: str
    check: Check | None = None
    broker_names: tuple[tuple[str, int], ...] = ()

    def parse(self, text: str) -> Any:
        """Return `text` as a typed and validated value. Raises InvalidConfigError."""
        try:
            value = _PARSERS[self.type](text.strip())
        except (ValueError, KeyError):
            kind = self.type.name
            raise InvalidConfigError(
                f"Invalid value {text} for configuration {self.name}: Not a value of type {kind}"
            ) from None
        problem = self.check(value) if self.check else None
        if problem:
            raise InvalidConfigError(f"Invalid value {text} for configuration {self.name}: {problem}")
        return value


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The effective value of `key` and its source.

    `synonyms` lists every (name, value, source) that sets the configuration, in order of precedence.
    """

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
    """Return a typed value as a string in Kafka's format."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value).replace("e+", "E") if isinstance(value, float) else str(value)
