"""Configuration definitions: typed keys with documentation, and the validation that Connect's REST API shows.

A `ConfigDef` is an ordered set of `ConfigKey`. Values arrive as text, as in properties files, and are parsed by Java's
rules: trimmed, booleans in any case, lists at commas, integers in their range. `ConfigDef.validate` looks at every key
and collects every error; it never raises. Shapes and texts are those of ``org.apache.kafka.common.config.ConfigDef``.
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
    """How the text of a value is read."""

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
    """How much a reader of the documentation should care."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Width(Enum):
    """How wide a form's entry field should be."""

    NONE = "NONE"
    SHORT = "SHORT"
    MEDIUM = "MEDIUM"
    LONG = "LONG"


class Password:
    """A secret: `value` has it, text and repr never do."""

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
"""The default of a key that must be given."""

Validator = Callable[[Any], None]
"""Takes the parsed value (None included); raises ValueError with the reason when it does not fit."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `default` REQUIRED means that it must be given, None that it may stay unset."""

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

    @property
    def required(self) -> bool:
        """Whether the key must be given."""
        return self.default is REQUIRED

    def parse(self, text: Any) -> Any:
        """The typed value of that text, checked. Raises ConfigError."""
        value = parse_value(self.name, text, self.type)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Run the validators on a typed value. Raises ConfigError with the first reason."""
        for validator in self.validators:
            try:
                validator(value)
            except ValueError as error:
                raise ConfigError(self.name, value, str(error)) from None

    def as_json(self) -> dict[str, Any]:
        """The definition as ``/connector-plugins/P/config`` shows it; `order` is what Kafka before 4.2 called it."""
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
    """What validation found for one key."""

    name: str
    value: Any = None
    recommended_values: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    visible: bool = True

    def as_json(self) -> dict[str, Any]:
        """The value as ``/connector-plugins/P/config/validate`` shows it; passwords are hidden."""
        return {
            "name": self.name,
            "value": to_text(self.value),
            "recommended_values": [to_text(value) for value in self.recommended_values],
            "errors": list(self.errors),
            "visible": self.visible,
        }


class ConfigDef:
    """An ordered set of keys."""

    __slots__ = ("keys",)
    keys: dict[str, ConfigKey]

    def __init__(self, keys: Iterable[ConfigKey] = ()) -> None:
        self.keys = {key.name: key for key in keys}

    def merged(self, other: ConfigDef) -> ConfigDef:
        """These keys and those of `other` that are not among them."""
        return ConfigDef([*self.keys.values(), *(key for name, key in other.keys.items() if name not in self.keys)])

    def embedded(self, prefix: str, group: str, order: int = 0) -> ConfigDef:
        """The same keys under a prefix, in one group, their orders shifted."""
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
        """The groups in order of appearance."""
        return list(dict.fromkeys(key.group for key in self.keys.values() if key.group))

    def validate(self, props: Mapping[str, str | None]) -> dict[str, ConfigValue]:
        """Parse and check every key."""
        return {name: self._validate_key(key, props)[0] for name, key in self.keys.items()}

    def parse(self, props: Mapping[str, str | None]) -> dict[str, Any]:
        """The typed values by key. Raises ConfigErrors with every error."""
        values, errors = self.typed(props)
        if errors:
            raise ConfigErrors(errors)
        return values

    def typed(self, props: Mapping[str, str | None]) -> tuple[dict[str, Any], list[ConfigError]]:
        """The typed values of the keys that are right, and what is wrong with the others."""
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
                found.value = parse_value(key.name, props[key.name], key.type)
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
    """The typed value of a property's text. Raises ConfigError; a value that is not text passes as it is."""
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
    """A typed value as Kafka writes it: null as None, lists with commas, booleans in lower case, passwords hidden."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(to_text(item) or "" for item in value)
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like a misspelt one, or None."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None


def unknown_key_warnings(unknown: Sequence[str], known: Iterable[str]) -> list[str]:
    """One line for each key that nobody reads, with the nearest one that somebody does."""
    names = list(known)
    warnings = []
    for key in unknown:
        guess = nearest(key, names)
        hint = f"; did you mean {guess}?" if guess else ""
        warnings.append(f"Unknown configuration key {key} is ignored{hint}")
    return warnings
