"""Creates a task's plug-ins from its configuration: the task itself, its converters and its transforms.

This module resolves variables of config providers. It runs in the task's process, and masks the resolved values in the
log of that process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.api.config_def import to_text
from headrace.api.connector import Connector
from headrace.api.errors import ConfigError, ConfigErrors
from headrace.api.task import SinkTask, Task
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.plugins.creation import mask_passwords
from headrace.plugins.plugin_sections import (
    CONVERTER_KEYS,
    PluginSection,
    converter_props,
    converter_section,
    create_converter_of,
    find_sections,
)
from headrace.plugins.variables import ConfigResolver
from headrace.plugins.worker_permission import refusal
from headrace.runtime.chain import Step
from headrace.runtime.conversion import Converters
from headrace.runtime.override_policy import check_overrides
from headrace.runtime.spec import TaskSpec


class StepSections(NamedTuple):
    """The sections of the configuration that configure a transform and its predicate."""

    transform: PluginSection
    predicate: PluginSection | None
    negate: bool


class Plugins:
    """The resolved configuration of one task, and methods that create its plug-ins.

    Raises ConfigErrors if the worker's policy does not allow a client override of the connector.
    """

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.worker = spec.worker
        use_plugin_path(spec.worker)
        with ConfigResolver.from_worker(spec.worker) as resolver:
            self.connector_config = resolver.resolve(spec.connector_config)
            self.task_config = resolver.resolve(spec.config)
            self.resolved_values = frozenset(resolver.resolved_values)
            """The values of the variables, which are secret."""
            logs.secrets.add(self.resolved_values)
            self.unresolved = dict.fromkeys(map(str, resolver.unresolved))
            """The keys are descriptions of the variables that could not be resolved."""
            self.ttl_ms = resolver.ttl_ms
            """The time after which a value of a config provider expires, in ms; None if no value expires."""
        for properties in (self.worker, self.connector_config, self.task_config):
            logs.mask_secrets_of(properties)
        check_overrides(self.connector_config, self.worker)

    def make_task(self) -> Task:
        """Create the task; the caller starts it."""
        task_class = self._find_task_class(self.task_config["task.class"])
        task = task_class()
        if not isinstance(task, Task):
            raise TypeError(f"{task_class.__qualname__} is not a subclass of Task")
        return task

    def _find_task_class(self, name: str) -> Any:
        if ":" in name:
            return load_class(name)
        # A Java class name, perhaps written by a worker of Apache Kafka: the connector's class has one task class.
        return self._connector_class().task_class

    def required_extra(self) -> str:
        """Return the extra that the connector needs, "" for none. Raises PluginNotFoundError."""
        return self._connector_class().required_extra(self.connector_config)

    def _connector_class(self) -> type[Connector[Any]]:
        return registry.find("connector", self.connector_config["connector.class"])

    def start_task(self, task: Task) -> None:
        """Parse the task's configuration and start the task. Raises ConfigErrors and any error of `start`.

        The originals of a sink's configuration contain the settings of its converters, also of the worker's converters.
        """
        properties = self.task_config
        if isinstance(task, SinkTask):
            properties = {**properties, **self._converter_settings()}
        mask_passwords(type(task), properties)
        task.config = task.config_model.parse(properties)
        task.start(task.config)

    def _converter_settings(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        for key in ("key.converter", "value.converter"):
            level = self.connector_config if self.connector_config.get(key) else self.worker
            settings |= {name: text for name, text in level.items() if name == key or name.startswith(f"{key}.")}
        return settings

    def make_converters(self) -> Converters:
        """Create the key, value and header converters. Raises ConfigErrors."""
        key, value, header = (create_converter_of(each, self.connector_config, self.worker) for each in CONVERTER_KEYS)
        return Converters(key, value, header)

    def converter_properties(self) -> dict[str, str]:
        """Return all settings of the key and value converters as connector properties, including their defaults.

        Raises ConfigErrors.
        """
        properties: dict[str, str] = {}
        for key in ("key.converter", "value.converter"):
            level = converter_props(key, self.connector_config, self.worker)
            section = converter_section(key, level)
            assert section is not None
            texts = {name: to_text(item.default) for name, item in section.definition.keys.items() if not item.required}
            texts |= {name: text for name, text in level.items() if name == key or name.startswith(section.prefix)}
            properties |= {name: text for name, text in texts.items() if text is not None}
        return properties

    def make_steps(self) -> list[Step]:
        """Create the transforms with their predicates.

        Raises ConfigErrors, for example if the worker refuses a transform.
        """
        config = self.connector_config
        steps = []
        for alias, sections in self.step_sections().items():
            predicate = None if sections.predicate is None else sections.predicate.create(config)
            transformation = sections.transform.create(config)
            transformation.alias = alias
            steps.append(Step(transformation, predicate, sections.negate))
        return steps

    def step_sections(self) -> dict[str, StepSections]:
        """Return the sections of each transform and of its predicate, by the transform's alias.

        Raises ConfigErrors, for example if the worker refuses a transform.
        """
        config = self.connector_config
        predicates = find_sections(config, "predicates", "predicate")
        steps = {}
        for alias, section in find_sections(config, "transforms", "transform").items():
            refused = refusal(section.plugin, self.worker)
            if refused is not None:
                raise ConfigErrors([ConfigError(section.type_key, config[section.type_key], refused)])
            name = section.value("predicate", config)
            if name and name not in predicates:
                raise ConfigErrors([ConfigError(f"{section.prefix}predicate", name, "No such alias in predicates")])
            steps[alias] = StepSections(section, predicates[name] if name else None, section.value("negate", config))
        return steps


def use_plugin_path(worker: Mapping[str, str]) -> None:
    """Add the directories of the worker's `plugin.path` to the plug-in registry and to sys.path."""
    registry.use_plugin_path(worker.get("plugin.path"))
    for directory in registry.plugin_directories(split_list(worker.get("plugin.path"))):
        if directory not in sys.path:
            sys.path.append(directory)


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


def task_class_name(connector: type[Connector[Any]], configured_class: str) -> str:
    """Return `task.class` for the tasks of a connector class. `configured_class` is the value of connector.class.

    `task.class` is the Java class name, so that workers of Apache Kafka can run the tasks. If the user configured a
    Python path, `task.class` is a Python path.
    """
    if connector.java_task_class and ":" not in configured_class:
        return connector.java_task_class
    return class_path(connector.task_class)


def class_path(class_: type) -> str:
    """Return the path of a class in the format of `load_class`."""
    return f"{class_.__module__}:{class_.__qualname__}"
