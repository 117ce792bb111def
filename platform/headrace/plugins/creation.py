"""Creates and configures transforms, predicates, converters and config providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config import config_def
from headrace.plugins import registry

SIMPLE_HEADER_CONVERTER = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
DEFAULT_CONVERTERS = {"header.converter": SIMPLE_HEADER_CONVERTER}
"""The converters that are used if neither the connector nor the worker sets them."""


def create(plugin_class: Any, props: Mapping[str, str]) -> Any:
    """Create a plug-in, set its `config` and call `configure`. Raises ConfigErrors and any error of `configure`."""
    plugin = plugin_class()
    plugin.config = plugin_class.config_model.parse(props)
    plugin.configure(plugin.config)
    return plugin


def create_converter(plugin_class: Any, props: Mapping[str, str], which: str) -> Any:
    """Create a converter or header converter. `which` is ``key``, ``value`` or ``header``. Raises as `create` does."""
    plugin = plugin_class()
    plugin.is_key = which == "key"
    plugin.config = plugin_class.config_model.parse({**props, **converter_type_props(plugin_class, which)})
    plugin.configure(plugin.config)
    return plugin


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
