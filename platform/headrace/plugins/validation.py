"""Validates a complete connector configuration: the keys of the framework, the connector, its converters, transforms
and predicates. The result has the format of Connect's ``PUT /connector-plugins/P/config/validate``.

Validation runs plug-in code (it imports classes, and the connector's own `validate` may open connections). Call it in
a separate process, because plug-in code may hang or crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.api.config import Config, config_def
from headrace.api.config_def import (
    ConfigDef,
    ConfigKey,
    ConfigType,
    ConfigValue,
    nearest_names,
    parse_value,
    unknown_key_warnings,
)
from headrace.api.connector import Connector, SinkConnector, SourceConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError, MissingConfigError
from headrace.api.task import SelfReadingSinkTask, SinkTask, SourceTask
from headrace.data.java_regex import JavaPattern
from headrace.plugins import connector_config, missing_modules, registry
from headrace.plugins.plugin_sections import (
    CONVERTER_KEYS,
    PluginSection,
    Props,
    aliased_sections,
    aliases,
    configure_errors,
    converter_section,
)
from headrace.plugins.value_warnings import value_warnings
from headrace.plugins.variables import UnresolvedVariable, variable_replacer
from headrace.plugins.worker_permission import refusal

ClientOverrideCheck = Callable[[type[Connector]], Iterable[tuple[str, str, bool]]]


@dataclass(slots=True)
class Validation:
    """The result of the validation of one configuration: its keys, their values and errors, and the warnings."""

    name: str
    type: str
    definitions: dict[str, ConfigKey] = field(default_factory=dict)
    values: dict[str, ConfigValue] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """A warning for each unknown key and each unresolved variable, and for values whose effect surprises users."""
    connector_warnings: list[str] = field(default_factory=list)
    """The result of the connector's `warnings`, which a worker logs when it starts the connector."""

    @property
    def errors(self) -> list[str]:
        """The errors of all keys."""
        return [error for value in self.values.values() for error in value.errors]

    def add_error(self, name: str, message: str, fallback: str = "connector.class") -> None:
        """Add an error to the key `name`, or to the key `fallback` if `name` is unknown."""
        value = self.values.get(name) or self.values.get(fallback)
        if value is None:
            value = self.values[name] = ConfigValue(name)
        if message not in value.errors:
            value.errors.append(message)

    def as_json(self) -> dict[str, Any]:
        """Return the result in the format of Connect's ``ConfigInfos``."""
        return {
            "name": self.name,
            "error_count": len(self.errors),
            "groups": ConfigDef(self.definitions.values()).groups(),
            "configs": [
                {
                    "definition": self.definitions[name].as_json() if name in self.definitions else None,
                    "value": value.as_json(),
                }
                for name, value in self.values.items()
            ],
        }


def validate_connector(
    props: Props,
    worker: Mapping[str, str],
    *,
    originals: Props | None = None,
    plugin: str | None = None,
    client_overrides: ClientOverrideCheck = lambda connector_class: (),
    unresolved: Sequence[UnresolvedVariable] = (),
) -> Validation:
    """Validate a connector's configuration, in which all variables except `unresolved` are already resolved.

    `originals` is the same configuration with its variables. The result contains the variables and never their values.
    If `plugin` is given, ``connector.class`` must name the same plug-in. `client_overrides` returns the problems of the
    client overrides: for each problem the key, the message, and True for an error or False for a warning.

    If the connector class is missing or not found, the result contains this error. The result then also contains the
    errors of the configuration keys that are common to all connectors. Raises ConnectError if `plugin` is not found, or
    if ``connector.class`` names another plug-in.
    """
    problems: list[ConfigError] = []
    connector_class = _connector_class(props, plugin, problems)
    result = Validation(props.get("connector.class") or plugin or "", _type_of(connector_class))
    if connector_class is None:
        framework_def, sections = connector_config.base_def(worker), []
    else:
        is_source = issubclass(connector_class, SourceConnector)
        framework_def = connector_config.source_def(worker, props) if is_source else connector_config.sink_def(worker)
        sections = [PluginSection(connector_class, "", "connector.class", config_def(connector_class.config_model))]
    sections += aliased_sections(props, problems, "transforms", "transform", connector_config.TRANSFORMS)
    sections += aliased_sections(props, problems, "predicates", "predicate", connector_config.PREDICATES)
    sections += _converter_sections(props)
    own_keys = sections[0].definition.merged(framework_def).keys if connector_class is not None else {}
    definition = ConfigDef([*framework_def.keys.values(), *own_keys.values()])
    definition = definition.merged(*(section.definition for section in sections))
    result.definitions = definition.keys
    result.values = definition.validate({**props, **_fixed_converter_types(sections)})
    _add_section_errors(result, sections, props, worker)
    for problem in problems:
        result.add_error(problem.key, str(problem))
    _check_combinations(result, props)
    if connector_class is not None:
        _check_task_class(result, connector_class)
        _check_type(result, connector_class, props, worker)
        _run_connector_checks(result, connector_class, props)
        _add_warnings(result, connector_class, sections, props, worker)
        for key, message, is_error in client_overrides(connector_class):
            if is_error:
                result.values.setdefault(key, ConfigValue(key))  # the value is omitted, because it may be a password
                result.add_error(key, message)
            else:
                result.warnings.append(message)
    if originals is not None:
        _redact(result, props, originals)
    _report_unresolved(result, unresolved)
    return result


def _connector_class(props: Props, plugin: str | None, problems: list[ConfigError]) -> type[Connector] | None:
    """Return the connector's class. If it is missing or not found, add an error to `problems` and return None."""
    name = (props.get("connector.class") or "").strip()
    if not name:
        if "connector.class" in props:  # otherwise, the key is reported as missing
            problems.append(ConfigError("connector.class", name, "String must be non-empty"))
        return None if plugin is None else registry.find("connector", plugin)
    found: type[Connector] | None = None
    try:
        found = registry.find("connector", name)
    except registry.PluginNotFoundError as error:
        problems.append(ConfigError("connector.class", name, str(error)))
    if plugin is not None and plugin != name and (found is None or registry.find("connector", plugin) is not found):
        raise ConnectError(f"Included connector type {name} does not match request type {plugin}")
    return found


def _type_of(connector_class: type[Connector] | None) -> str:
    if connector_class is None:
        return "unknown"
    return "source" if issubclass(connector_class, SourceConnector) else "sink"


def _converter_sections(props: Props) -> Iterator[PluginSection]:
    """Yield the sections of the converters that the connector's configuration sets."""
    for key in CONVERTER_KEYS:
        with suppress(ConnectError):  # the class was not found: the key's own validator reports it
            section = converter_section(key, props)
            if section is not None:
                yield section


def _fixed_converter_types(sections: list[PluginSection]) -> dict[str, str]:
    return {section.prefix + name: text for section in sections for name, text in section.fixed_props.items()}


def _add_section_errors(
    result: Validation, sections: list[PluginSection], props: Props, worker: Mapping[str, str]
) -> None:
    """Validate each plug-in's configuration with its model, then with its `configure`, and add the errors to `result`.

    `configure` is not called if the model finds an error, or if the worker does not permit the plug-in.
    """
    for section in sections:
        own = section.props(props)
        errors: list[ConfigError] = section.model.errors(own)
        refused = refusal(section.plugin, worker)
        if refused is not None:
            result.add_error(section.type_key, str(ConfigError(section.type_key, props.get(section.type_key), refused)))
        elif (
            not errors
            and not issubclass(section.plugin, Connector)
            and not section.plugin.__dict__.get("abstract", False)
        ):
            errors = configure_errors(section, props)
        for error in errors:
            name = section.prefix + error.key
            if error.key in section.model.removed_keys:
                new_name = section.prefix + section.model.removed_keys[error.key]
                result.values[name] = ConfigValue(name, recommended_values=[new_name])
            if isinstance(error, MissingConfigError):
                if name not in props:  # a value that is null has an error of its own
                    result.add_error(name, str(MissingConfigError(name)))
            elif name in result.values:
                result.add_error(name, str(ConfigError(name, error.value, error.reason)))
            else:
                result.add_error(
                    section.type_key, str(ConfigError(section.type_key, props.get(section.type_key), error.reason))
                )


def _check_task_class(result: Validation, connector_class: type[Connector]) -> None:
    """Add an error if the connector class lacks a valid `task_class`."""
    name = connector_class.__qualname__
    bases: dict[type, tuple[type, ...]] = {
        SourceConnector: (SourceTask,),
        SinkConnector: (SinkTask, SelfReadingSinkTask),
    }
    tasks = next((tasks for base, tasks in bases.items() if issubclass(connector_class, base)), None)
    if tasks is None:
        result.add_error("connector.class", f"Class {name} is neither a SourceConnector nor a SinkConnector")
        return
    expected = " or a ".join(task.__name__ for task in tasks)
    missing = object()
    task_class = getattr(connector_class, "task_class", missing)
    if task_class is missing:
        result.add_error("connector.class", f"Class {name} has no attribute task_class: set it to a {expected}")
    elif not (isinstance(task_class, type) and issubclass(task_class, tasks)):
        result.add_error(
            "connector.class", f"The task_class of class {name} is {task_class!r}: it must be a {expected}"
        )


# ---- rules over several keys -----------------------------------------------------------------------------------------


def _check_combinations(result: Validation, props: Props) -> None:
    for name, text in props.items():
        if text is None:
            result.values.setdefault(name, ConfigValue(name))
            result.add_error(name, "Null value can not be supplied as the configuration value.")
    predicates = set(aliases(props, "predicates"))
    for alias in aliases(props, "transforms"):
        predicate = props.get(f"transforms.{alias}.predicate")
        if predicate and predicate not in predicates:
            name = f"transforms.{alias}.predicate"
            result.add_error(name, str(ConfigError(name, predicate, "No such alias in predicates")))


def _check_type(result: Validation, connector_class: type[Connector], props: Props, worker: Mapping[str, str]) -> None:
    """Add the errors of rules that apply only to source connectors, or only to sink connectors."""
    if issubclass(connector_class, SinkConnector):
        _check_sink(result, connector_class, props, worker)
        return
    topic = (props.get("offsets.storage.topic") or "").strip()
    for key in ("config.storage.topic", "status.storage.topic"):
        if topic and topic == worker.get(key):
            result.add_error("offsets.storage.topic", f"Topic {topic} is the worker's {key}: set another topic")
    if (props.get("exactly.once.support") or "").strip().lower() == "required":
        result.add_error(
            "exactly.once.support",
            "This worker delivers the records of source connectors at least once, not exactly once: "
            "set exactly.once.support=requested",
        )


def _check_sink(
    result: Validation, connector_class: type[SinkConnector], props: Props, worker: Mapping[str, str]
) -> None:
    topics = [topic for topic in parse_value("topics", props.get("topics") or "", ConfigType.LIST) if topic]
    pattern = (props.get("topics.regex") or "").strip()
    both = ("topics", "topics.regex")
    if topics and pattern:
        for name in both:
            result.add_error(name, "topics and topics.regex are mutually exclusive options, but both are set.")
    if not topics and not pattern:
        for name in both:
            result.add_error(name, "Must configure one of topics or topics.regex")
    queue = (props.get("errors.deadletterqueue.topic.name") or "").strip()
    if queue and queue in topics:
        result.add_error(
            "topics",
            f"The DLQ topic '{queue}' may not be included in the list of topics ('topics=[{', '.join(topics)}]') "
            "consumed by the connector",
        )
    if queue and pattern and not result.values["topics.regex"].errors and JavaPattern(pattern).matches(queue):
        result.add_error(
            "topics.regex",
            f"The DLQ topic '{queue}' may not be matched by the regex for the topics ('topics.regex={pattern}') "
            "consumed by the connector",
        )
    worker_group, override = worker.get("group.id"), props.get("consumer.override.group.id")
    if override is not None and override == worker_group:
        result.values.setdefault("consumer.override.group.id", ConfigValue("consumer.override.group.id", override))
        text = f"Consumer group {override} conflicts with Connect worker group {worker_group}"
        result.add_error("consumer.override.group.id", text)
    elif override is None and worker_group == f"connect-{props.get('name')}":
        text = f"Consumer group for sink connector named {props.get('name')} conflicts with Connect worker group "
        result.add_error("name", f"{text}{worker_group}")
    if not connector_class.supports_transforms:
        for key in ("transforms", "predicates"):
            if aliases(props, key):
                text = f"{connector_class.__name__} reads its topics itself and does not support {key}"
                result.add_error(key, str(ConfigError(key, props.get(key), text)))


def _run_connector_checks(result: Validation, connector_class: type[Connector], props: Props) -> None:
    """Call the connector's `validate`. If `config_model` accepts the configuration, also call its other checks."""
    given = {name: text for name, text in props.items() if text is not None}
    check = "validate"
    try:
        connector = connector_class()
        connector.validate(given, result.values)
        if connector_class.config_model.errors(given):
            return
        config = connector_class.config_model.parse(given)
        check = "validate_config"
        for each in connector.validate_config(config):
            result.add_error(each.key, str(each))
        check = "warnings"
        result.connector_warnings += connector.warnings(config)
    except ConfigErrors as errors:
        for each in errors.errors:
            result.add_error(each.key, str(each))
    except ConfigError as error:
        result.add_error(error.key, str(error))
    except Exception as error:  # noqa: BLE001 - report any error of a connector as an error of its configuration
        if check != "validate" and result.errors:
            return  # these checks require a valid configuration, so the reported errors have probably caused this one
        owner = missing_modules.distribution_of(connector_class.__module__)
        reason = missing_modules.explain(error, owner, lambda: connector_class.required_extra(given))
        reason = reason or f"{type(error).__name__}: {error}"
        result.add_error("connector.class", f"{connector_class.__name__}.{check}: {reason}")


def _add_warnings(
    result: Validation,
    connector_class: type[Connector],
    sections: list[PluginSection],
    props: Props,
    worker: Mapping[str, str],
) -> None:
    """Add a warning for each key that has no effect, and a recommendation for each unknown key.

    An unknown key gets an entry in the result. The entry contains only the key's name and, if there is one, a similar
    known key as the recommended value. Clients of Connect's API accept an entry without a
    definition. The entry does not contain the configured value, because it may be a password under a misspelt key.
    """
    known, prefixes = _known_keys(result, connector_class, sections, props)
    unknown = [name for name in props if name not in known and not name.startswith(prefixes)]
    unused = {
        name: key for name in unknown for key in CONVERTER_KEYS if name.startswith(f"{key}.") and not props.get(key)
    }
    warnings = unknown_key_warnings([name for name in unknown if name not in unused], known)
    if issubclass(connector_class, SourceConnector):
        warnings += [f"{name}={props[name]} {reason}" for name, reason in _WITHOUT_EFFECT.items() if props.get(name)]
        if (topic := props.get("offsets.storage.topic")) and worker and "offset.storage.topic" not in worker:
            warnings.append(
                f"offsets.storage.topic={topic} has no effect: a standalone worker stores the offsets of all source "
                "connectors in offset.storage.file.filename"
            )
    for name, key in unused.items():
        warnings.append(
            f"Configuration key {name} is ignored, because the connector uses the worker's {key} and its settings: "
            f"set {key} in the connector's configuration too"
        )
    result.warnings += [*warnings, *value_warnings(connector_class, sections, props, worker)]
    for name, similar in nearest_names(unknown, known).items():
        guess = unused.get(name) or similar
        result.values.setdefault(name, ConfigValue(name)).recommended_values += [guess] if guess else []


_WITHOUT_EFFECT = {
    "transaction.boundary": "has no effect: source tasks write without transactions",
    "transaction.boundary.interval.ms": "has no effect: source tasks write without transactions",
}
"""Keys of source connectors that are accepted with a warning."""


def _known_keys(
    result: Validation, connector_class: type[Connector], sections: list[PluginSection], props: Props
) -> tuple[set[str], tuple[str, ...]]:
    """Return the known keys, and the prefixes with which further known keys begin."""
    task_model = getattr(getattr(connector_class, "task_class", None), "config_model", Config)
    known = {*result.definitions, *config_def(task_model).keys}
    known |= {f"{section.prefix}plugin.version" for section in sections[1:]}
    prefixes = [*connector_config.CLIENT_OVERRIDES, *task_model.passthrough_prefixes]
    prefixes += [section.prefix + prefix for section in sections for prefix in section.model.passthrough_prefixes]
    prefixes += [f"topic.creation.{group}." for group in ("default", *aliases(props, "topic.creation.groups"))]
    prefixes += [section.prefix for section in sections[1:] if section.accepts_any_key]
    known |= {section.prefix + name for section in sections for name in section.model.removed_keys}
    configured = {section.type_key for section in sections}
    # If a converter's class was not found, its keys are not reported as unknown.
    prefixes += [f"{key}." for key in CONVERTER_KEYS if props.get(key) and key not in configured]
    return known, tuple(prefixes)


def _redact(result: Validation, props: Props, originals: Props) -> None:
    """Replace resolved values with their variables, in values, error messages and warnings.

    `props` contains the resolved values, and `originals` the variables.
    """
    replacer = variable_replacer(originals, props)
    for value in result.values.values():
        original = originals.get(value.name)
        if original is not None and original != props.get(value.name):
            value.value = original
        value.errors = list(map(replacer.replace, value.errors))
    result.warnings = list(map(replacer.replace, result.warnings))
    result.connector_warnings = list(map(replacer.replace, result.connector_warnings))


def _report_unresolved(result: Validation, unresolved: Sequence[UnresolvedVariable]) -> None:
    """Report unresolved variables as errors if the configuration has other errors, and otherwise as warnings.

    As in Kafka Connect, an unresolved variable alone is not an error. The configuration value then contains the text of
    the variable. But an unresolved variable may cause another error, for example a failed authentication.
    """
    if not result.errors:
        result.warnings += map(str, unresolved)
        return
    for variable in unresolved:
        result.values.setdefault(variable.key, ConfigValue(variable.key))
        result.add_error(variable.key, str(variable))


def plugin_config(name: str) -> list[dict[str, Any]]:
    """Return the keys of a plug-in for ``GET /connector-plugins/P/config``: first its own keys, then the framework's.

    Raises ConnectError if the plug-in is not found.
    """
    for kind in registry.Kind:
        if kind is registry.Kind.CONFIG_PROVIDER:
            continue
        try:
            plugin = registry.find(kind.label, name)
        except registry.PluginNotFoundError:
            continue
        definition = config_def(plugin.config_model)
        if issubclass(plugin, SourceConnector):
            definition = definition.merged(connector_config.source_def({}, {}))
        elif issubclass(plugin, SinkConnector):
            definition = definition.merged(connector_config.sink_def({}))
        return [key.as_json() for key in definition.keys.values()]
    raise registry.PluginNotFoundError(f"Unknown plugin {name}.")
