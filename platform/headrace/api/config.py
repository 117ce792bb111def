"""Typed configuration for plug-ins: a pydantic model whose fields are Kafka-style keys.

    class FileSourceConfig(Config):
        file: str | None = key("file", default=None, doc="File to read; empty means standard input.")
        topic: str = key("topic", doc="Topic to write to.", importance=Importance.HIGH)
        batch_size: int = key("batch.size", default=2000, at_least=1, doc="Records per poll at most.")

    config = FileSourceConfig.parse({"topic": "lines"})     # raises ConfigErrors with all errors

The annotation determines the Kafka type: str is STRING, int is INT (``type=ConfigType.LONG`` for 64 bits), float is
DOUBLE, bool is BOOLEAN, list[str] is LIST, and Password is PASSWORD. A type may be optional (``| None``).
An `enum.Enum` or a `Literal` of strings is a STRING that accepts only these values. Define rules about several
keys in `errors_between`. Pydantic's own field and model validators run last, and only if there are no other errors.
Validation, the REST API's key lists, documentation and the masking of passwords are all derived from the model.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union

import pydantic
from pydantic import BaseModel, ConfigDict, PrivateAttr

from headrace.api.config_def import (
    REQUIRED,
    ConfigDef,
    ConfigKey,
    ConfigType,
    Importance,
    Password,
    Validator,
    Width,
    unknown_key_warnings,
)
from headrace.api.errors import ConfigError, ConfigErrors

__all__ = [
    "REQUIRED",
    "Config",
    "ConfigDef",
    "ConfigKey",
    "ConfigType",
    "Importance",
    "Password",
    "Width",
    "config_def",
    "key",
]

_C = TypeVar("_C", bound="Config")
_EXTRA = "headrace"


def key(
    name: str,
    *,
    default: Any = REQUIRED,
    doc: str = "",
    importance: Importance = Importance.MEDIUM,
    group: str | None = None,
    order: int | None = None,
    width: Width = Width.NONE,
    display_name: str | None = None,
    type: ConfigType | None = None,
    one_of: tuple[str, ...] = (),
    case_insensitive: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    non_empty: bool = False,
    validator: Validator | None = None,
    recommended: tuple[Any, ...] = (),
    dependents: tuple[str, ...] = (),
    distinct: bool = False,
) -> Any:
    """Declare a field as the configuration key `name`.

    `default` is the typed value that is used if the key is not set; without a default the key is required. `one_of`,
    `at_least`, `at_most`, `non_empty` and `validator` (a function that raises ValueError) validate the parsed value;
    None is always valid. `distinct` removes duplicates from a list.
    """
    checks = [] if validator is None else [_unless_none(validator)]
    if one_of:
        checks.append(_one_of(one_of, case_insensitive))
    if at_least is not None or at_most is not None:
        checks.append(_between(at_least, at_most))
    if non_empty:
        checks.append(_non_empty)
    definition = ConfigKey(
        name=name,
        type=type or ConfigType.STRING,
        default=default,
        doc=doc,
        importance=importance,
        group=group,
        order=-1 if order is None else order,
        width=width,
        display_name=display_name,
        validators=tuple(checks),
        recommended=recommended or one_of,
        dependents=dependents,
        distinct=distinct,
    )
    extra: Any = {_EXTRA: definition, "typed": type is not None}
    pydantic_default = ... if default is REQUIRED else default
    return pydantic.Field(pydantic_default, alias=name, description=doc, json_schema_extra=extra)


class Config(BaseModel):
    """The base class of all plug-in configurations.

    Instances are immutable. `originals` contains the unparsed values of all keys.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, populate_by_name=True, extra="ignore")

    passthrough_prefixes: ClassVar[tuple[str, ...]] = ()
    """Prefixes of further valid keys that are not fields of the model: read them with `originals_with_prefix`."""

    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Maps each old name that is no longer accepted to the new name.

    A configuration that sets an old name is invalid: ignoring the key would change the data, for example expose fields
    that the key excludes.
    """

    without_effect: ClassVar[Mapping[str, str]] = {}
    """The keys that are accepted only for compatibility, with the reason why the key has no effect.

    A key that ends with a dot is the prefix of such keys. `warnings_about_keys` warns about these keys if they are set.
    """

    _originals: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def parse(cls: type[_C], props: Mapping[str, str | None]) -> _C:
        """Parse and validate a configuration. Raises ConfigErrors with all errors."""
        values, errors = config_def(cls).typed(props)
        errors += cls._errors_of_removed_keys(props)
        errors += cls.errors_between(values)
        if errors:
            raise ConfigErrors(errors)
        try:
            config = cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise ConfigErrors(_from_pydantic(cls, error, values)) from None
        except ConfigError as error:  # a validator of the model raised it, and it already names its key
            raise ConfigErrors([error]) from None
        config._originals = {name: text for name, text in props.items() if text is not None}
        return config

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterable[ConfigError]:
        """Return the errors in combinations of keys. Subclasses override this method.

        `values` contains the parsed values by the name of the key, not of the field. Invalid keys are missing in
        `values`, so that errors of the valid keys are still reported. (A pydantic validator runs only if all keys are
        valid.) A rule should return no error if one of its keys is missing.
        """
        return ()

    @classmethod
    def errors(cls, props: Mapping[str, str | None]) -> list[ConfigError]:
        """Return all errors that `parse` would raise."""
        try:
            cls.parse(props)
        except ConfigErrors as errors:
            return list(errors.errors)
        return []

    @classmethod
    def unknown_keys(cls, props: Mapping[str, Any]) -> list[str]:
        """Return the keys in `props` that are unknown to the model."""
        known = config_def(cls).keys
        return [name for name in props if name not in known and not name.startswith(cls.passthrough_prefixes or "\0")]

    @classmethod
    def warnings(cls, props: Mapping[str, Any]) -> list[str]:
        """Return one warning for each unknown key, with the most similar known key."""
        unknown = [name for name in cls.unknown_keys(props) if name not in cls.removed_keys]
        return unknown_key_warnings(unknown, config_def(cls).keys)

    @classmethod
    def _errors_of_removed_keys(cls, props: Mapping[str, str | None]) -> list[ConfigError]:
        return [
            ConfigError(old, props[old], f"this key was removed, and ignoring it would change the data; use {new}")
            for old, new in cls.removed_keys.items()
            if props.get(old)
        ]

    def value_warnings(self, task_class: type[Any]) -> dict[str, str]:
        """Return {key: effect} of the keys with a valid value whose effect often surprises users.

        The platform logs them when a connector is created. `task_class` is the class of the connector's tasks.
        """
        return {}

    def warnings_about_keys(self) -> list[str]:
        """Return one warning for each key that is set and has no effect. `Connector.warnings` returns them."""
        return [
            f"Configuration {name} has no effect: {reason}"
            for name in sorted(self._originals)
            if (reason := self._reason_without_effect(name)) is not None
        ]

    def _reason_without_effect(self, name: str) -> str | None:
        for known, reason in self.without_effect.items():
            if name == known or (known.endswith(".") and name.startswith(known)):
                return reason
        return None

    @property
    def reads_header_values(self) -> bool:
        """Whether the plug-in reads the values of record headers with this configuration."""
        return False

    @property
    def originals(self) -> dict[str, str]:
        """The unparsed values of all keys that were set, including unknown keys."""
        return dict(self._originals)

    def originals_with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the keys that start with `prefix`, with the prefix removed."""
        return {name[len(prefix) :]: text for name, text in self._originals.items() if name.startswith(prefix)}


@cache
def config_def(model: type[Config]) -> ConfigDef:
    """Return the definition of a model's keys, in the order of the fields. The keys of each group are numbered."""
    orders: dict[str | None, int] = {}
    keys = []
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict) or _EXTRA not in extra:
            raise TypeError(f"{model.__name__}.{name} is not declared with key(...), which every field needs")
        definition = typing.cast("ConfigKey", extra[_EXTRA])
        keys.append(_completed(definition, field.annotation, bool(extra["typed"]), orders))
    return ConfigDef(keys)


def _completed(definition: ConfigKey, annotation: Any, typed: bool, orders: dict[str | None, int]) -> ConfigKey:
    from dataclasses import replace

    type_, values = _kafka_type(annotation)
    orders[definition.group] = orders.get(definition.group, 0) + 1
    validators = definition.validators
    if values:
        validators = (*validators, _one_of(values, False))
    return replace(
        definition,
        type=definition.type if typed else type_,
        order=orders[definition.group] if definition.order < 0 else definition.order,
        validators=validators,
        recommended=definition.recommended or values,
    )


def _kafka_type(annotation: Any) -> tuple[ConfigType, tuple[str, ...]]:
    """Return the Kafka type of an annotation, and the permitted values of an enum or Literal."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return _kafka_type(members[0])
    if origin is Literal:
        return ConfigType.STRING, tuple(typing.get_args(annotation))
    if origin in (list, tuple):
        return ConfigType.LIST, ()
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ConfigType.STRING, tuple(str(member.value) for member in annotation)
    simple = {bool: ConfigType.BOOLEAN, int: ConfigType.INT, float: ConfigType.DOUBLE, str: ConfigType.STRING}
    simple.update({Password: ConfigType.PASSWORD, list: ConfigType.LIST})
    return simple.get(annotation, ConfigType.STRING), ()


def _from_pydantic(model: type[Config], error: pydantic.ValidationError, values: dict[str, Any]) -> list[ConfigError]:
    names = {field: info.alias or field for field, info in model.model_fields.items()}
    found = []
    for item in error.errors(include_url=False):
        location = str(item["loc"][0]) if item["loc"] else ""
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            found.append(cause)
            continue
        name = names.get(location, location)
        found.append(ConfigError(name, values.get(name), str(cause or item["msg"])))
    return found


def _unless_none(check: Validator) -> Validator:
    def unless_none(value: Any) -> None:
        if value is not None:
            check(value)

    return unless_none


def _one_of(permitted: tuple[str, ...], case_insensitive: bool) -> Validator:
    fold: Callable[[str], str] = str.lower if case_insensitive else str
    folded = {fold(value) for value in permitted}
    text = ", ".join(permitted)
    note = "(case insensitive) " if case_insensitive else ""

    def one_of(value: Any) -> None:
        for item in value if isinstance(value, list) else [value]:
            if item is not None and fold(str(item.value if isinstance(item, enum.Enum) else item)) not in folded:
                raise ValueError(f"String must be one of {note}{text}")

    return one_of


def _between(low: float | None, high: float | None) -> Validator:
    def between(value: Any) -> None:
        if value is None:
            return
        if low is not None and value < low:
            raise ValueError(f"Value must be at least {low}")
        if high is not None and value > high:
            raise ValueError(f"Value must be no more than {high}")

    return between


def _non_empty(value: Any) -> None:
    if value is not None and not value:
        raise ValueError("must be non-empty")
