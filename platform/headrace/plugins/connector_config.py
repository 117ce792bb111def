"""The configuration keys that the framework itself reads from every connector's configuration.

The same keys, defaults, groups and orders as Kafka Connect's ``ConnectorConfig``, ``SinkConnectorConfig`` and
``SourceConnectorConfig``, the latter with the keys of its topic creation groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, Width, parse_value
from headrace.api.errors import ConnectError
from headrace.data.java_regex import check_pattern
from headrace.plugins import registry

COMMON, TRANSFORMS, PREDICATES, ERRORS = "Common", "Transforms", "Predicates", "Error Handling"
TOPIC_CREATION, EXACTLY_ONCE, OFFSETS_TOPIC = "Topic Creation", "Exactly Once Support", "offsets.topic"

CLIENT_OVERRIDES = ("producer.override.", "consumer.override.", "admin.override.")
"""Prefixes of keys that go to the task's clients."""

_LOW, _MEDIUM, _HIGH = Importance.LOW, Importance.MEDIUM, Importance.HIGH


def _name(value: Any) -> None:
    if value is None:
        return
    if not value.strip():
        raise ValueError("String may not be empty")
    bad = [f"\\u{ord(char):04X}" for char in value if ord(char) < 32 or 127 <= ord(char) < 160]
    if bad:
        raise ValueError(
            f"String may not contain control characters but had the following ASCII chars: {', '.join(bad)}"
        )


def _at_least(low: int) -> Any:
    def check(value: Any) -> None:
        if value is None:
            raise ValueError("Value must be non-null")
        if value < low:
            raise ValueError(f"Value must be at least {low}")

    return check


def _one_of(*permitted: str, fold: bool = False) -> Any:
    def check(value: Any) -> None:
        if value is None or (value.lower() if fold else value) not in permitted:
            raise ValueError(f"String must be one of{' (case insensitive)' if fold else ''}: {', '.join(permitted)}")

    return check


def _unique(value: Any) -> None:
    if value is not None and len(set(value)) != len(value):
        raise ValueError("Duplicate alias provided.")


def _topics(value: Any) -> None:
    if value is not None and (len(set(value)) != len(value) or "" in value):
        raise ValueError("values must not be duplicated or empty.")


def _regex(value: Any) -> None:
    if value:
        check_pattern(value)


def _regexes(values: Any) -> None:
    for value in values or ():
        check_pattern(value)


def _interval(value: Any) -> None:
    if value is not None:
        _at_least(0)(value)


def _not_blank(value: Any) -> None:
    if value is not None and not value.strip():
        raise ValueError("String must be non-empty")


def _count(what: str) -> Any:
    def check(value: Any) -> None:
        if value is not None and value != -1 and value < 1:
            raise ValueError(f"{what} must be positive, or -1 to use the broker's default")

    return check


def _plugin_class(kind: str) -> Any:
    def check(value: Any) -> None:
        if value is None:
            return
        try:
            registry.find(kind, value)
        except ConnectError as error:
            raise ValueError(str(error)) from None

    return check


def _base(worker: Mapping[str, str]) -> list[ConfigKey]:
    string, flag, long_ = ConfigType.STRING, ConfigType.BOOLEAN, ConfigType.LONG
    keys: list[ConfigKey] = []
    orders = {COMMON: 0, ERRORS: 0}

    def add(
        name: str, type_: ConfigType, default: Any, doc: str, importance: Importance, group: str, width: Width,
        display: str, *validators: Any,
    ) -> None:  # fmt: skip
        counter = ERRORS if group == ERRORS else COMMON
        orders[counter] += 1
        keys.append(
            ConfigKey(name, type_, default, doc, importance, group, orders[counter], width, display, tuple(validators))
        )

    add("name", string, REQUIRED, "The connector's name, unique in its cluster.", _HIGH, COMMON, Width.MEDIUM,
        "Connector name", _name)  # fmt: skip
    add("connector.class", string, REQUIRED, "The connector's class: its Java name, a short name, or module:Class.",
        _HIGH, COMMON, Width.LONG, "Connector class")  # fmt: skip
    add("connector.plugin.version", string, None, "Version of the connector; accepted, not used.", _MEDIUM, COMMON,
        Width.MEDIUM, "Connector version")  # fmt: skip
    add("tasks.max", ConfigType.INT, 1, "How many tasks the connector may have.", _HIGH, COMMON, Width.SHORT,
        "Tasks max", _at_least(1))  # fmt: skip
    add("tasks.max.enforce", flag, True, "(Deprecated) Fail a connector that makes more tasks than tasks.max.", _LOW,
        COMMON, Width.SHORT, "Enforce tasks max")  # fmt: skip
    for which in ("key", "value", "header"):
        name = f"{which}.converter"
        kind = "header_converter" if which == "header" else "converter"
        add(name, ConfigType.CLASS, worker.get(name), f"Converter of record {which}s; without it the worker's.", _LOW,
            COMMON, Width.SHORT, f"{which.capitalize()} converter class", _plugin_class(kind))  # fmt: skip
        add(f"{name}.plugin.version", string, None, "Version of the converter; accepted, not used.", _LOW, COMMON,
            Width.SHORT, f"{which.capitalize()} converter version")  # fmt: skip
    add("transforms", ConfigType.LIST, [], "Aliases of the transforms, in the order of their application.", _LOW,
        TRANSFORMS, Width.LONG, "Transforms", _unique)  # fmt: skip
    add("predicates", ConfigType.LIST, [], "Aliases of the predicates that transforms use.", _LOW, PREDICATES,
        Width.LONG, "Predicates", _unique)  # fmt: skip
    add("config.action.reload", string, "restart", "What happens when a value from a config provider expires.", _LOW,
        COMMON, Width.MEDIUM, "Reload Action", _one_of("none", "restart"))  # fmt: skip
    add("errors.retry.timeout", long_, 0, "How long, in ms, a failed operation is repeated; -1: for ever.", _MEDIUM,
        ERRORS, Width.MEDIUM, "Retry Timeout for Errors")  # fmt: skip
    add("errors.retry.delay.max.ms", long_, 60000, "The longest pause between two attempts, in ms.", _MEDIUM, ERRORS,
        Width.MEDIUM, "Maximum Delay Between Retries for Errors")  # fmt: skip
    add("errors.tolerance", string, "none", "none: the first bad record fails the task; all: bad records are left out.",
        _MEDIUM, ERRORS, Width.SHORT, "Error Tolerance", _one_of("none", "all"))  # fmt: skip
    add("errors.log.enable", flag, False, "Log every failed operation, tolerated ones too.", _MEDIUM, ERRORS,
        Width.SHORT, "Log Errors")  # fmt: skip
    add("errors.log.include.messages", flag, False, "Log the records at fault as well.", _MEDIUM, ERRORS, Width.SHORT,
        "Log Error Details")  # fmt: skip
    return keys


def base_def(worker: Mapping[str, str]) -> ConfigDef:
    """What sources and sinks share; the worker's converters are the defaults."""
    return ConfigDef(_base(worker))


def sink_def(worker: Mapping[str, str]) -> ConfigDef:
    """The keys of every sink."""
    prefix = "errors.deadletterqueue."
    string = ConfigType.STRING
    keys = [
        ConfigKey("topics", ConfigType.LIST, [], "Topics to consume.", _HIGH, COMMON, 4, Width.LONG, "Topics",
                  (_topics,)),
        ConfigKey("topics.regex", string, "", "Regular expression, in Java's syntax, of topics to consume; instead of "
                  "topics.", _HIGH, COMMON, 4, Width.LONG, "Topics regex", (_regex,)),
        ConfigKey(f"{prefix}topic.name", string, "", "Topic for records that cannot be handled; none: no such queue.",
                  _MEDIUM, ERRORS, 6, Width.MEDIUM, "Dead Letter Queue Topic Name"),
        ConfigKey(f"{prefix}topic.replication.factor", ConfigType.SHORT, 3, "Replication factor to create it with.",
                  _MEDIUM, ERRORS, 7, Width.MEDIUM, "Dead Letter Queue Topic Replication Factor"),
        ConfigKey(f"{prefix}context.headers.enable", ConfigType.BOOLEAN, False, "Tell the error in headers of the "
                  "records there.", _MEDIUM, ERRORS, 8, Width.MEDIUM, "Enable Error Context Headers"),
    ]  # fmt: skip
    return base_def(worker).merged(ConfigDef(keys))


def source_def(worker: Mapping[str, str], props: Mapping[str, str | None]) -> ConfigDef:
    """The keys of every source, with those of the topic creation groups that `props` names."""
    string = ConfigType.STRING
    keys = [
        ConfigKey("topic.creation.groups", ConfigType.LIST, [], "Groups of settings for topics that get created.", _LOW,
                  TOPIC_CREATION, 1, Width.LONG, "Topic Creation Groups", (_unique,)),
        ConfigKey("exactly.once.support", string, "requested", "requested, or required to refuse a connector that "
                  "cannot.", _MEDIUM, EXACTLY_ONCE, 2, Width.SHORT, "Exactly once support",
                  (_one_of("requested", "required", fold=True),)),
        ConfigKey("transaction.boundary", string, "poll", "When transactions end: poll, interval or connector.",
                  _MEDIUM, EXACTLY_ONCE, 3, Width.SHORT, "Transaction Boundary",
                  (_one_of("poll", "interval", "connector", fold=True),)),
        ConfigKey("transaction.boundary.interval.ms", ConfigType.LONG, None, "How long transactions last.", _LOW,
                  EXACTLY_ONCE, 4, Width.SHORT, "Transaction boundary interval", (_interval,)),
        ConfigKey("offsets.storage.topic", string, None, "An offsets topic of its own.", _LOW, OFFSETS_TOPIC, 1,
                  Width.LONG, "Offsets topic", (_not_blank,)),
    ]  # fmt: skip
    return base_def(worker).merged(ConfigDef(keys)).merged(ConfigDef(_topic_creation(props)))


def _topic_creation(props: Mapping[str, str | None]) -> list[ConfigKey]:
    if not any(name.startswith("topic.creation.") for name in props):
        return []
    groups = parse_value("topic.creation.groups", props.get("topic.creation.groups") or "", ConfigType.LIST)
    keys = _topic_group("default", "default", REQUIRED, REQUIRED)
    factor = _number(props.get("topic.creation.default.replication.factor"))
    partitions = _number(props.get("topic.creation.default.partitions"))
    for group in dict.fromkeys(groups):
        if group and group != "default":
            keys += _topic_group(group, f"{TOPIC_CREATION}: {group}", factor, partitions)
    return keys


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None


def _topic_group(name: str, group: str, factor: Any, partitions: Any) -> list[ConfigKey]:
    prefix = f"topic.creation.{name}."
    including = [".*"] if name == "default" else []
    return [
        ConfigKey(f"{prefix}include", ConfigType.LIST, including, "Regular expressions of topics in the group.", _LOW,
                  group, 1, Width.LONG, f"Inclusion Topic Pattern for {group}", (_regexes,)),
        ConfigKey(f"{prefix}exclude", ConfigType.LIST, [], "Regular expressions of topics that are not.", _LOW, group,
                  2, Width.LONG, f"Exclusion Topic Pattern for {group}", (_regexes,)),
        ConfigKey(f"{prefix}replication.factor", ConfigType.SHORT, factor, "Replication factor of new topics; -1: the "
                  "broker's.", _LOW, group, 3, Width.LONG, f"Replication Factor for Topics in {group}",
                  (_count("Replication factor"),)),
        ConfigKey(f"{prefix}partitions", ConfigType.INT, partitions, "Partitions of new topics; -1: the broker's.",
                  _LOW, group, 4, Width.LONG, f"Partition Count for Topics in {group}",
                  (_count("Number of partitions"),)),
    ]  # fmt: skip
