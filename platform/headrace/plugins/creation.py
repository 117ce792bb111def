"""Creates and configures transforms, predicates, converters and config providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config import config_def
from headrace.api.config_def import ConfigType
from headrace.metrics import logs
from headrace.plugins import registry

SIMPLE_HEADER_CONVERTER = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
DEFAULT_CONVERTERS = {"header.converter": SIMPLE_HEADER_CONVERTER}
"""The converters that are used if neither the connector nor the worker sets them."""


def create(plugin_class: Any, props: Mapping[str, str]) -> Any:
    """Create a plug-in, set its `config` and call `configure`. Raises ConfigErrors and any error of `configure`.

    From now on, its passwords are masked in this process's log and error messages.
    """
    mask_passwords(plugin_class, props)
    plugin = plugin_class()
    plugin.config = plugin_class.config_model.parse(props)
    plugin.configure(plugin.config)
    return plugin


def create_converter(plugin_class: Any, props: Mapping[str, str], which: str) -> Any:
    """Create a converter or header converter as `create` does. `which` is ``key``, ``value`` or ``header``."""
    mask_passwords(plugin_class, props)
    plugin = plugin_class()
    plugin.is_key = which == "key"
    plugin.config = plugin_class.config_model.parse({**props, **converter_type_props(plugin_class, which)})
    plugin.configure(plugin.config)
    return plugin


def mask_passwords(plugin_class: Any, props: Mapping[str, str]) -> None:
    """From now on, mask the values of the plug-in's PASSWORD keys, and those of other keys that look like secrets."""
    keys = config_def(plugin_class.config_model).keys
    logs.mask_secrets_of(props, [name for name, item in keys.items() if item.type is ConfigType.PASSWORD])


def find_converter(name: str, which: str) -> type[Any]:
    """Return the class of a header converter if `which` is ``header``, otherwise of a converter.

    Raises PluginNotFoundError.
    """
    return registry.find("header_converter" if which == "header" else "converter", name)


def converter_type_props(plugin_class: Any, which: str) -> dict[str, str]:
    """Return ``{"converter.type": which}`` if the converter has the key ``converter.type``, otherwise an empty dict.

    The platform sets this key itself, as Connect does.
    """
    return {"converter.type": which} if "converter.type" in config_def(plugin_class.config_model).keys else {}
