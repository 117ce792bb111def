"""The sections of a connector's configuration that configure its transforms, predicates and converters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.api.config import Config, config_def
from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, Width, parse_value
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.plugins import registry
from headrace.plugins.creation import converter_type_props, create, create_converter, find_converter

Props = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class PluginSection:
    """The configuration section of one plug-in: the keys with its prefix."""

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

    def props(self, props: Props) -> dict[str, str]:
        """Return the part of a connector's configuration that the plug-in receives, without the prefix."""
        below = {name[len(self.prefix) :]: text for name, text in props.items() if name.startswith(self.prefix)}
        return {**{name: text for name, text in below.items() if text is not None}, **self.fixed_props}


def aliases(props: Props, key: str) -> list[str]:
    """Return the items of a list of aliases without duplicates."""
    return [alias for alias in dict.fromkeys(parse_value(key, props.get(key) or "", ConfigType.LIST)) if alias]


def aliased_sections(
    props: Props, problems: list[ConfigError], key: str, kind: str, group: str
) -> Iterable[PluginSection]:
    """Yield the sections of the transforms or predicates; add errors about their classes to `problems`."""
    for alias in aliases(props, key):
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


def converter_sections(props: Props) -> Iterable[PluginSection]:
    """Yield the sections of the converters that the connector's configuration sets."""
    for which in ("key", "value", "header"):
        type_key = f"{which}.converter"
        name = props.get(type_key)
        if not name:
            continue
        try:
            plugin = find_converter(name, which)
        except ConnectError:
            continue  # reported by the key's own validator
        definition = config_def(plugin.config_model).embedded(f"{type_key}.", f"Converters: {type_key}")
        yield PluginSection(plugin, f"{type_key}.", type_key, definition, converter_type_props(plugin, which))


def configure_errors(section: PluginSection, own: dict[str, str]) -> list[ConfigError]:
    """Create and configure the plug-in; return the errors."""
    try:
        if section.type_key.endswith(".converter"):
            plugin = create_converter(section.plugin, own, section.type_key.removesuffix(".converter"))
        else:
            plugin = create(section.plugin, own)
        plugin.close()
    except ConfigErrors as error:
        return list(error.errors)
    except ConfigError as error:
        return [error]
    except Exception as error:  # noqa: BLE001 - report any error of a plug-in as an error of its configuration
        return [ConfigError("type", section.plugin.__name__, f"{type(error).__name__}: {error}")]
    return []
