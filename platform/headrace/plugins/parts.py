"""The plug-ins that a connector's configuration names, transforms, predicates and converters, with their own keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.api.config import Config, config_def
from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, Width, parse_value
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.plugins import registry

Props = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Part:
    """A plug-in that reads the keys below a prefix."""

    plugin: Any
    prefix: str
    type_key: str
    definition: ConfigDef
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> type[Config]:
        """The plug-in's configuration model."""
        model: type[Config] = self.plugin.config_model
        return model

    def props(self, props: Props) -> dict[str, str]:
        """What the plug-in gets to see of a configuration."""
        below = {name[len(self.prefix) :]: text for name, text in props.items() if name.startswith(self.prefix)}
        return {**{name: text for name, text in below.items() if text is not None}, **self.extra}


def aliases(props: Props, key: str) -> list[str]:
    """The items of a list of aliases, each once."""
    return [alias for alias in dict.fromkeys(parse_value(key, props.get(key) or "", ConfigType.LIST)) if alias]


def steps(props: Props, problems: list[ConfigError], key: str, kind: str, group: str) -> Iterable[Part]:
    """The transforms or predicates; what is wrong with their classes is added to `problems`."""
    for alias in aliases(props, key):
        prefix, type_key = f"{key}.{alias}.", f"{key}.{alias}.type"
        base = registry.Kind.of(kind).base
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
        yield Part(plugin, prefix, type_key, own_def.merged(inner))


def _predicate_keys(prefix: str) -> list[ConfigKey]:
    return [
        ConfigKey(f"{prefix}predicate", ConfigType.STRING, None, "Alias of the predicate that says where it applies."),
        ConfigKey(f"{prefix}negate", ConfigType.BOOLEAN, False, "Apply it where the predicate does not hold."),
    ]


def _type_key(name: str, alias: str, kind: str, base: str) -> ConfigKey:
    what = "transformation" if kind == "transform" else kind
    return ConfigKey(
        name,
        ConfigType.CLASS,
        REQUIRED,
        f"Class for the '{alias}' {what}.",
        Importance.HIGH,
        width=Width.LONG,
        display_name=f"{base} type for {alias}",
    )


def converters(props: Props) -> Iterable[Part]:
    """The converters that the connector sets itself."""
    for which in ("key", "value", "header"):
        type_key = f"{which}.converter"
        name = props.get(type_key)
        if not name:
            continue
        try:
            plugin = registry.find("header_converter" if which == "header" else "converter", name)
        except ConnectError:
            continue  # reported by the key's own validator
        definition = config_def(plugin.config_model).embedded(f"{type_key}.", f"Converters: {type_key}")
        extra = {"converter.type": which} if f"{type_key}.converter.type" in definition.keys else {}
        yield Part(plugin, f"{type_key}.", type_key, definition, extra)


def configure_errors(part: Part, own: dict[str, str]) -> list[ConfigError]:
    """What is wrong when the plug-in is made and configured."""
    plugin = part.plugin()
    try:
        if part.type_key.endswith(".converter"):
            plugin.configure(own) if part.type_key == "header.converter" else plugin.configure(
                own, part.type_key == "key.converter"
            )
        else:
            plugin.configure(part.model.parse(own))
        plugin.close()
    except ConfigErrors as error:
        return list(error.errors)
    except ConfigError as error:
        return [error]
    except Exception as error:  # noqa: BLE001 - a plug-in's fault is an error of its configuration here
        return [ConfigError("type", type(plugin).__name__, f"{type(error).__name__}: {error}")]
    return []
