"""Creates a task's plug-ins from its configuration: the task itself, its converters and its transforms.

Variables of config providers are resolved in this module, in the process that runs the task; their values are masked in
the log of that process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from headrace.api.task import Task
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.plugins.creation import SIMPLE_HEADER_CONVERTER, create, create_converter, find_converter
from headrace.plugins.variables import ConfigResolver
from headrace.runtime.chain import Step
from headrace.runtime.conversion import Converters
from headrace.runtime.spec import TaskSpec


class Plugins:
    """The resolved configuration of one task, and methods that create its plug-ins."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.worker = spec.worker
        use_plugin_path(spec.worker)
        with ConfigResolver.from_worker(spec.worker) as resolver:
            self.connector_config = resolver.resolve(spec.connector_config)
            self.task_config = resolver.resolve(spec.config)
            logs.secrets.add(resolver.resolved_values)
        logs.mask_secrets_of({**self.connector_config, **self.task_config})

    def make_task(self) -> Task:
        """Create the task; the caller starts it."""
        task_class = load_class(self.task_config["task.class"])
        task = task_class()
        if not isinstance(task, Task):
            raise TypeError(f"{task_class.__qualname__} is not a subclass of Task")
        return task

    def start_task(self, task: Task) -> None:
        """Parse the task's configuration and start the task. Raises ConfigErrors and any error of `start`."""
        task.config = task.config_model.parse(self.task_config)
        task.start(task.config)

    def make_converters(self) -> Converters:
        """Create the key, value and header converters. Raises ConfigErrors."""
        return Converters(self._converter("key"), self._converter("value"), self._converter("header"))

    def converter_properties(self) -> dict[str, str]:
        """Return the key and value converters' settings as connector properties; the worker's are the defaults."""
        properties: dict[str, str] = {}
        for key in ("key.converter", "value.converter"):
            name, settings = self._converter_settings(key)
            properties |= {key: name} | {f"{key}.{setting}": value for setting, value in settings.items()}
        return properties

    def make_steps(self) -> list[Step]:
        """Create the transforms with their predicates. Raises ConfigErrors."""
        config = self.connector_config
        return [self._step(alias) for alias in split_list(config.get("transforms"))]

    def _converter(self, which: str) -> Any:
        default = SIMPLE_HEADER_CONVERTER if which == "header" else ""
        name, properties = self._converter_settings(f"{which}.converter", default)
        return create_converter(find_converter(name, which), properties, which)

    def _converter_settings(self, key: str, default: str = "") -> tuple[str, dict[str, str]]:
        """Class and properties, both from the level at which the class is set."""
        level = self.connector_config if self.connector_config.get(key) else self.worker
        return level.get(key) or default, under(level, key + ".")

    def _step(self, alias: str) -> Step:
        settings = under(self.connector_config, f"transforms.{alias}.")
        transformation = create(registry.find("transform", settings["type"]), settings)
        name = settings.get("predicate")
        if not name:
            return Step(transformation)
        predicate_settings = under(self.connector_config, f"predicates.{name}.")
        predicate = create(registry.find("predicate", predicate_settings["type"]), predicate_settings)
        return Step(transformation, predicate, settings.get("negate", "false").strip().lower() == "true")


def use_plugin_path(worker: Mapping[str, str]) -> None:
    """Add the directories of the worker's `plugin.path` to the plug-in registry and to sys.path."""
    registry.use_plugin_path(worker.get("plugin.path"))
    for directory in registry.plugin_directories(split_list(worker.get("plugin.path"))):
        if directory not in sys.path:
            sys.path.append(directory)


def under(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the properties that start with a prefix, with the prefix removed."""
    return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}


def split_list(text: str | None) -> list[str]:
    """Split a comma-separated value."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def load_class(path: str) -> Any:
    """Import the class at `package.module:Class`."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def class_path(class_: type) -> str:
    """Return the path of a class in the format of `load_class`."""
    return f"{class_.__module__}:{class_.__qualname__}"
