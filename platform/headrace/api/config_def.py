"""Configuration definitions: typed keys with documentation, and their validation as in Connect's REST API.

A `ConfigDef` is an ordered set of `ConfigKey`. Values are strings, as in properties files, and are parsed by Java's
rules: they are trimmed, booleans are case-insensitive, lists are split at commas, and integers must be in the range of
their type. `ConfigDef.validate` checks every key and collects all errors; it never raises. Formats and messages are
those of ``org.apache.kafka.common.config.ConfigDef``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headrace.api.errors import ConfigError, ConfigErrors, MissingConfigError
from headrace.data.java import trim


class ConfigType(Enum):
    """The type of a configuration key. The type determines how the string value is parsed."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    SHORT = "SHORT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"
    CLASS = "CLASS"
    PASSWORD = "PASSWORD"


class Importance(Enum):
    """The importance of a key, for its documentation."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Width(Enum):
    """The width of a key's input field in user interfaces."""

    NONE = "NONE"
    SHORT = "SHORT"
    MEDIUM = "MEDIUM"
    LONG = "LONG"


class Password:
    """A secret. `value` contains the secret, and `str` and `repr` never show it."""

    __slots__ = ("value",)
    value: str
    HIDDEN = "[hidden]"

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.HIDDEN

    __repr__ = __str__


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""The default of a required key."""

Validator = Callable[[Any], None]
"""Validates a parsed value (which may be None); raises ValueError with the reason if it is invalid."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The definition of one key. `default` is REQUIRED if the key must be set, and None if it may be unset."""

    name: str
    type: ConfigType = ConfigType.STRING
    default: Any = REQUIRED
    doc: str = ""
    importance: Importance = Importance.MEDIUM
    group: str | None = None
    order: int = -1
    width: Width = Width.NONE
    display_name: str | None = None
    validators: tuple[Validator, ...] = ()
    recommended: tuple[Any, ...] = ()
    dependents: tuple[str, ...] = ()
    distinct: bool = False
    """Whether duplicates are removed from a list, as Kafka does for keys with the validator ValidList."""

    @property
    def required(self) -> bool:
        """Whether the key must be set."""
        return self.default is REQUIRED

    def parse(self, text: Any) -> Any:
        """Parse and validate a string value. Raises ConfigError."""
        value = self.parse_unchecked(text)
        self.check(value)
        return value

    def parse_unchecked(self, text: Any) -> Any:
        """Parse a string value. Raises ConfigError if the value does not have the key's type."""
        value = parse_value(self.name, text, self.type)
        return list(dict.fromkeys(value)) if self.distinct and isinstance(value, list) else value

    def check(self, value: Any) -> None:
        """Validate a typed value. Raises ConfigError with the reason of the first failing validator."""
        for validator in self.validators:
            try:
                validator(value)
            except ValueError as error:
                raise ConfigError(self.name, value, str(error)) from None

    def as_json(self) -> dict[str, Any]:
        """Return the definition for ``/connector-plugins/P/config``.

        In Kafka before 4.2, the name of `order_in_group` was `order`.
        """
        return {
            "name": self.name,
            "type": self.type.value,
            "required": self.required,
            "default_value": None if self.required else to_text(self.default),
            "importance": self.importance.value,
            "documentation": self.doc,
            "group": self.group,
            "width": self.width.value,
            "display_name": self.display_name or self.name,
            "dependents": list(self.dependents),
            "order": self.order,
            "order_in_group": self.order,
        }


@dataclass(slots=True)
class ConfigValue:
    """The validation result of one key."""

    name: str
    value: Any = None
    recommended_values: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    visible: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the value for ``/connector-plugins/P/config/validate``; passwords are hidden."""
        return {
            "name": self.name,
            "value": to_text(self.value),
            "recommended_values": [to_text(value) for value in self.recommended_values],
            "errors": list(self.errors),
            "visible": self.visible,
        }


class ConfigDef:
    """An ordered set of key definitions."""

    __slots__ = ("keys",)
    keys: dict[str, ConfigKey]

    def __init__(self, keys: Iterable[ConfigKey] = ()) -> None:
        self.keys = {key.name: key for key in keys}

    def merged(self, *others: ConfigDef) -> ConfigDef:
        """Return a definition with the keys of this definition, followed by the further keys of the others."""
        keys = dict(self.keys)
        for other in others:
            for name, key in other.keys.items():
                keys.setdefault(name, key)
        return ConfigDef(keys.values())

    def embedded(self, prefix: str, group: str, order: int = 0) -> ConfigDef:
        """Return a definition of these keys with a prefix, in one group, and with `order` added to their order."""
        return ConfigDef(
            replace(
                key,
                name=prefix + key.name,
                group=group,
                order=key.order + order,
                dependents=tuple(prefix + dependent for dependent in key.dependents),
            )
            for key in self.keys.values()
        )

    def groups(self) -> list[str]:
        """Return the groups in order of appearance."""
        return list(dict.fromkeys(key.group for key in self.keys.values() if key.group))

    def validate(self, props: Mapping[str, str | None]) -> dict[str, ConfigValue]:
        """Parse and validate every key."""
        return {name: self._validate_key(key, props)[0] for name, key in self.keys.items()}

    def parse(self, props: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the typed values by key. Raises ConfigErrors with all errors."""
        values, errors = self.typed(props)
        if errors:
            raise ConfigErrors(errors)
        return values

    def typed(self, props: Mapping[str, str | None]) -> tuple[dict[str, Any], list[ConfigError]]:
        """Return the typed values of the valid keys, and the errors of the invalid keys."""
        values: dict[str, Any] = {}
        errors: list[ConfigError] = []
        for name, key in self.keys.items():
            found, error = self._validate_key(key, props)
            if error is None:
                values[name] = found.value
            else:
                errors.append(error)
        return values, errors

    @staticmethod
    def _validate_key(key: ConfigKey, props: Mapping[str, str | None]) -> tuple[ConfigValue, ConfigError | None]:
        found = ConfigValue(key.name, recommended_values=list(key.recommended))
        try:
            if key.name in props:
                found.value = key.parse_unchecked(props[key.name])
            elif key.required:
                raise MissingConfigError(key.name)
            else:
                found.value = key.default
            key.check(found.value)
        except ConfigError as error:
            found.errors.append(str(error))
            return found, error
        return found, None


_INTEGER_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_JAVA_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_JAVA_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII)


def parse_value(name: str, text: Any, type: ConfigType) -> Any:
    """Parse a property to a typed value. A value that is not a string is returned unchanged. Raises ConfigError."""
    if not isinstance(text, str):
        return text
    trimmed = trim(text)
    if type is ConfigType.BOOLEAN:
        if trimmed.lower() not in ("true", "false"):
            raise ConfigError(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if type in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[type] - 1)
        if len(trimmed) > 40 or not _JAVA_INTEGER.fullmatch(trimmed) or not -limit <= int(trimmed) < limit:
            raise ConfigError(name, text, f"Not a number of type {type.value}")
        return int(trimmed)
    if type is ConfigType.DOUBLE:
        if not _JAVA_DOUBLE.fullmatch(trimmed):
            raise ConfigError(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)
    if type is ConfigType.LIST:
        return list(map(trim, trimmed.split(","))) if trimmed else []
    return Password(trimmed) if type is ConfigType.PASSWORD else trimmed


def to_text(value: Any) -> str | None:
    """Convert a typed value to Kafka's string format: lists with commas, booleans in lower case, passwords hidden."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(to_text(item) or "" for item in value)
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


COMPARISONS_MAX = 1_000_000
"""The maximum number of comparisons in `nearest_names`, which take about two seconds."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelt name, or None."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None


def nearest_names(unknown: Sequence[str], known: Iterable[str]) -> dict[str, str | None]:
    """Return the most similar known name for each unknown name.

    If there are so many names that the comparisons would take long, return None instead of a similar name.
    """
    names = list(known)
    if len(unknown) * len(names) > COMPARISONS_MAX:
        names = []
    return {name: nearest(name, names) for name in unknown}


def unknown_key_warnings(unknown: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return one warning for each unknown key, with the most similar known key."""
    warnings = []
    for key, guess in nearest_names(unknown, known).items():
        hint = f"; did you mean {guess}?" if guess else ""
        warnings.append(f"Unknown configuration key {key} is ignored{hint}")
    return warnings
