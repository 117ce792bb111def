"""The sections of a connector's configuration that configure its transforms, predicates and converters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.api.config import Config, config_def
from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, Width, parse_value
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError, MissingConfigError
from headrace.plugins import registry
from headrace.plugins.creation import (
    DEFAULT_CONVERTERS,
    converter_type_props,
    create,
    create_converter,
    find_converter,
)

Props = Mapping[str, str | None]
ALIASES_MAX = 1_000
"""The maximum number of transforms, and of predicates, because the validation of more would take long."""
CONVERTER_KEYS = ("key.converter", "value.converter", "header.converter")


@dataclass(frozen=True, slots=True)
class PluginSection:
    """The keys of a connector's configuration that configure one plug-in: those with the plug-in's prefix."""

    plugin: Any
    prefix: str
    type_key: str
    definition: ConfigDef
    fixed_props: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> type[Config]:
        """The plug-in's configuration model."""
        model: type[Config] = self.plugin.config_model
        return model

    @property
    def accepts_any_key(self) -> bool:
        """Whether validation accepts every key of the section, instead of reporting unknown keys.

        True if the plug-in's class was not found, or if the plug-in has no configuration model. A plug-in without a
        model may read its keys from `config.originals`.
        """
        return self.plugin.__dict__.get("abstract", False) or self.model is Config

    def props(self, props: Props) -> dict[str, str]:
        """Return the plug-in's own configuration: the keys of this section in `props`, without the prefix."""
        below = {name[len(self.prefix) :]: text for name, text in props.items() if name.startswith(self.prefix)}
        return {**{name: text for name, text in below.items() if text is not None}, **self.fixed_props}

    def value(self, name: str, props: Props) -> Any:
        """Return the typed value of a key of this section, or its default. Raises ConfigError.

        `name` is the key without the prefix.
        """
        definition = self.definition.keys[self.prefix + name]
        text = props.get(definition.name)
        return definition.default if text is None else definition.parse(text)

    def create(self, props: Props) -> Any:
        """Create and configure the plug-in. Raises ConfigErrors and any error of `configure`."""
        if self.type_key.endswith(".converter"):
            return create_converter(self.plugin, self.props(props), self.type_key.removesuffix(".converter"))
        return create(self.plugin, self.props(props))


def aliases(props: Props, key: str) -> list[str]:
    """Return the aliases in the value of `key`, for example ``transforms``, without duplicates."""
    return [alias for alias in dict.fromkeys(parse_value(key, props.get(key) or "", ConfigType.LIST)) if alias]


def aliased_sections(
    props: Props, problems: list[ConfigError], key: str, kind: str, group: str
) -> Iterable[PluginSection]:
    """Yield the sections of the plug-ins that `key` lists; add errors about their classes to `problems`.

    `key` is ``transforms`` or ``predicates``, and `kind` is ``transform`` or ``predicate``. The name of each section's
    group of keys consists of `group` and the alias.
    """
    found = aliases(props, key)
    if len(found) > ALIASES_MAX:
        text = f"The list contains {len(found)} aliases, but at most {ALIASES_MAX} are allowed"
        problems.append(ConfigError(key, f"{found[0]},...", text))
        return
    for alias in found:
        prefix, type_key = f"{key}.{alias}.", f"{key}.{alias}.type"
        base = registry.Kind.from_label(kind).base
        own = [_type_key(type_key, alias, kind, base.__name__)]
        if kind == "transform":
            own += _predicate_keys(prefix)
            if f"{prefix}negate" in props and f"{prefix}predicate" not in props:
                text = (
                    f"Config '{prefix}negate' was provided but there is no config '{prefix}predicate' "
                    "defining a predicate to be negated."
                )
                problems.append(ConfigError(type_key, props.get(type_key), text))
        name, plugin = props.get(type_key), base
        if name:
            try:
                plugin = registry.find(kind, name)
            except ConnectError as error:
                problems.append(ConfigError(type_key, name, str(error)))
        own_def = ConfigDef([replace(item, group=f"{group}: {alias}", order=n) for n, item in enumerate(own)])
        inner = config_def(plugin.config_model).embedded(prefix, f"{group}: {alias}", len(own))
        yield PluginSection(plugin, prefix, type_key, own_def.merged(inner))


def _predicate_keys(prefix: str) -> list[ConfigKey]:
    return [
        ConfigKey(f"{prefix}predicate", ConfigType.STRING, None, "Alias of the predicate that selects the records."),
        ConfigKey(f"{prefix}negate", ConfigType.BOOLEAN, False, "Apply to records that do not match the predicate."),
    ]


def _type_key(name: str, alias: str, kind: str, base: str) -> ConfigKey:
    category = "transformation" if kind == "transform" else kind
    return ConfigKey(
        name,
        ConfigType.CLASS,
        REQUIRED,
        f"Class for the '{alias}' {category}.",
        Importance.HIGH,
        width=Width.LONG,
        display_name=f"{base} type for {alias}",
    )


def find_sections(props: Props, key: str, kind: str) -> dict[str, PluginSection]:
    """Return the section of each transform or predicate by alias. Raises ConfigErrors if a class is not found.

    `key` is ``transforms`` or ``predicates``, and `kind` is ``transform`` or ``predicate``.
    """
    problems: list[ConfigError] = []
    sections = list(aliased_sections(props, problems, key, kind, ""))
    problems += [MissingConfigError(each.type_key) for each in sections if not props.get(each.type_key)]
    if problems:
        raise ConfigErrors(problems)
    return dict(zip(aliases(props, key), sections, strict=True))


def converter_section(key: str, props: Props) -> PluginSection | None:
    """Return the section of a converter, or None if `props` does not set the converter's class.

    `key` is one of CONVERTER_KEYS. Raises PluginNotFoundError.
    """
    name = props.get(key)
    if not name:
        return None
    which = key.removesuffix(".converter")
    plugin = find_converter(name, which)
    definition = config_def(plugin.config_model).embedded(f"{key}.", f"Converters: {key}")
    return PluginSection(plugin, f"{key}.", key, definition, converter_type_props(plugin, which))


def converter_props(key: str, *levels: Props) -> Props:
    """Return the first configuration that has a value for `key`: one of `levels`, or else DEFAULT_CONVERTERS.

    `key` is the key of a converter's class, for example `value.converter`. `levels` are the configurations of the
    connector and the worker, in this order. If the connector names the class, the worker's settings for this converter
    do not apply. Raises ConfigErrors if none of these configurations names a class.
    """
    for props in (*levels, DEFAULT_CONVERTERS):
        if props.get(key):
            return props
    raise ConfigErrors([MissingConfigError(key)])


def create_converter_of(key: str, *levels: Props) -> Any:
    """Create the converter for `key`, with the configuration that `converter_props` selects from `levels`.

    Raises ConfigErrors, ConnectError and the converter's errors.
    """
    props = converter_props(key, *levels)
    section = converter_section(key, props)
    assert section is not None
    return section.create(props)


def configure_errors(section: PluginSection, props: Props) -> list[ConfigError]:
    """Create and configure the plug-in; return the errors."""
    try:
        section.create(props).close()
    except ConfigErrors as error:
        return list(error.errors)
    except ConfigError as error:
        return [error]
    except Exception as error:  # noqa: BLE001 - report any error of a plug-in as an error of its configuration
        return [ConfigError("type", section.plugin.__name__, f"{type(error).__name__}: {error}")]
    return []
