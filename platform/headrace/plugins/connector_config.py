"""The configuration keys that the framework itself reads from every connector's configuration.

Keys, defaults, groups and their order are those of Kafka Connect's ``ConnectorConfig``, ``SinkConnectorConfig`` and
``SourceConnectorConfig`` (including the keys of topic creation groups).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance, Width, parse_value
from headrace.api.errors import ConnectError
from headrace.data.java_regex import check_pattern
from headrace.plugins import registry

COMMON, TRANSFORMS, PREDICATES, ERRORS = "Common", "Transforms", "Predicates", "Error Handling"
TOPIC_CREATION, EXACTLY_ONCE, OFFSETS_TOPIC = "Topic Creation", "Exactly Once Support", "offsets.topic"

CLIENT_OVERRIDES = ("producer.override.", "consumer.override.", "admin.override.")
"""Prefixes of keys that are passed to the clients of the connector's tasks."""

_LOW, _MEDIUM, _HIGH = Importance.LOW, Importance.MEDIUM, Importance.HIGH


NAME_LENGTH_MAX = 249
"""The maximum length of a connector's name, which is also Kafka's maximum length of a topic name.

The protocol of the workers' group could encode up to 32,767 bytes.
"""


def _check_name(value: Any) -> None:
    if value is None:
        return
    if not value.strip():
        raise ValueError("String may not be empty")
    if len(value) > NAME_LENGTH_MAX:
        raise ValueError(f"String may have at most {NAME_LENGTH_MAX} characters but has {len(value)}")
    bad = [str(ord(char)) for char in value if ord(char) < 32 or 127 <= ord(char) < 160]
    if bad:
        raise ValueError(
            f"String may not contain control sequences but had the following ASCII chars: {', '.join(bad)}"
        )


def _at_least_check(low: int) -> Any:
    def check(value: Any) -> None:
        if value is None:
            raise ValueError("Value must be non-null")
        if value < low:
            raise ValueError(f"Value must be at least {low}")

    return check


def _one_of_check(*permitted: str, fold: bool = False) -> Any:
    def check(value: Any) -> None:
        if value is None or (value.lower() if fold else value) not in permitted:
            raise ValueError(f"String must be one of{' (case insensitive)' if fold else ''}: {', '.join(permitted)}")

    return check


def _check_unique(value: Any) -> None:
    if value is not None and len(set(value)) != len(value):
        raise ValueError("Duplicate alias provided.")


def _check_topics(value: Any) -> None:
    if value is not None and "" in value:
        raise ValueError("values must not be empty.")


def _check_regex(value: Any) -> None:
    if value:
        check_pattern(value)


def _check_regexes(values: Any) -> None:
    for value in values or ():
        check_pattern(value)


def _check_interval(value: Any) -> None:
    if value is not None:
        _at_least_check(0)(value)


def _check_not_blank(value: Any) -> None:
    if value is not None and not value.strip():
        raise ValueError("String must be non-empty")


def _count_check(label: str) -> Any:
    def check(value: Any) -> None:
        if value is not None and value != -1 and value < 1:
            raise ValueError(f"{label} must be positive, or -1 to use the broker's default")

    return check


def _plugin_class_check(kind: str) -> Any:
    def check(value: Any) -> None:
        if value is None:
            return
        try:
            registry.find(kind, value)
        except ConnectError as error:
            raise ValueError(str(error)) from None

    return check


def _base_keys(worker: Mapping[str, str]) -> list[ConfigKey]:
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
        "Connector name", _check_name)  # fmt: skip
    add("connector.class", string, REQUIRED, "The connector's class: a Java class name, a short name, or module:Class.",
        _HIGH, COMMON, Width.LONG, "Connector class")  # fmt: skip
    add("connector.plugin.version", string, None, "Version of the connector; accepted but ignored.", _MEDIUM, COMMON,
        Width.MEDIUM, "Connector version")  # fmt: skip
    add("tasks.max", ConfigType.INT, 1, "Maximum number of tasks of the connector.", _HIGH, COMMON, Width.SHORT,
        "Tasks max", _at_least_check(1))  # fmt: skip
    add("tasks.max.enforce", flag, True, "(Deprecated) Fail a connector that creates more tasks than tasks.max.", _LOW,
        COMMON, Width.SHORT, "Enforce tasks max")  # fmt: skip
    for which in ("key", "value", "header"):
        name = f"{which}.converter"
        kind = "header_converter" if which == "header" else "converter"
        add(name, ConfigType.CLASS, worker.get(name), f"Converter of record {which}s; the default is the worker's.",
            _LOW, COMMON, Width.SHORT, f"{which.capitalize()} converter class", _plugin_class_check(kind))  # fmt: skip
        add(f"{name}.plugin.version", string, None, "Version of the converter; accepted but ignored.", _LOW, COMMON,
            Width.SHORT, f"{which.capitalize()} converter version")  # fmt: skip
    add("transforms", ConfigType.LIST, [], "Aliases of the transforms, in the order in which they are applied.", _LOW,
        TRANSFORMS, Width.LONG, "Transforms", _check_unique)  # fmt: skip
    add("predicates", ConfigType.LIST, [], "Aliases of the predicates that transforms use.", _LOW, PREDICATES,
        Width.LONG, "Predicates", _check_unique)  # fmt: skip
    add("config.action.reload", string, "restart", "The action when a value from a config provider expires.", _LOW,
        COMMON, Width.MEDIUM, "Reload Action", _one_of_check("none", "restart"))  # fmt: skip
    add("errors.retry.timeout", long_, 0, "How long a failed operation is retried, in ms; -1: without limit.", _MEDIUM,
        ERRORS, Width.MEDIUM, "Retry Timeout for Errors")  # fmt: skip
    add("errors.retry.delay.max.ms", long_, 60000, "Maximum delay between two retries, in ms.", _MEDIUM, ERRORS,
        Width.MEDIUM, "Maximum Delay Between Retries for Errors")  # fmt: skip
    add("errors.tolerance", string, "none", "none: the first bad record fails the task; all: bad records are skipped.",
        _MEDIUM, ERRORS, Width.SHORT, "Error Tolerance", _one_of_check("none", "all"))  # fmt: skip
    add("errors.log.enable", flag, False, "Log every failed operation, including tolerated ones.", _MEDIUM, ERRORS,
        Width.SHORT, "Log Errors")  # fmt: skip
    add("errors.log.include.messages", flag, False, "Also log the failed records.", _MEDIUM, ERRORS, Width.SHORT,
        "Log Error Details")  # fmt: skip
    restart = "errors.restart."
    add(f"{restart}max.attempts", ConfigType.INT, 0, "How often a failed connector or task is restarted automatically; "
        "-1: without limit. The count starts again after it has run for errors.restart.backoff.max.ms. If the key is "
        "not set and a signal killed its process, it is restarted up to 5 times an hour.", _LOW, ERRORS,
        Width.SHORT, "Automatic Restarts", _at_least_check(-1))  # fmt: skip
    add(f"{restart}backoff.initial.ms", long_, 1000, "Delay before the first automatic restart, in ms; it doubles with "
        "each further one.", _LOW, ERRORS, Width.SHORT, "Initial Restart Back-off", _at_least_check(0))  # fmt: skip
    add(f"{restart}backoff.max.ms", long_, 60000, "Maximum delay before an automatic restart, in ms.", _LOW, ERRORS,
        Width.SHORT, "Maximum Restart Back-off", _at_least_check(0))  # fmt: skip
    return keys


def base_def(worker: Mapping[str, str]) -> ConfigDef:
    """Return the keys that sources and sinks share. The default of each converter key is its value in `worker`."""
    return ConfigDef(_base_keys(worker))


def sink_def(worker: Mapping[str, str]) -> ConfigDef:
    """Return the keys that all sinks share. The default of each converter key is its value in `worker`."""
    string = ConfigType.STRING
    keys = [
        ConfigKey("topics", ConfigType.LIST, [], "Topics to consume.", _HIGH, COMMON, 4, Width.LONG, "Topics",
                  (_check_topics,), distinct=True),
        ConfigKey("topics.regex", string, "", "Regular expression, in Java's syntax, of topics to consume; instead of "
                  "topics.", _HIGH, COMMON, 4, Width.LONG, "Topics regex", (_check_regex,)),
    ]  # fmt: skip
    return base_def(worker).merged(ConfigDef([*keys, *_dead_letter_queue_keys()]))


def _dead_letter_queue_keys() -> list[ConfigKey]:
    """Return the keys of the dead letter queue. In Kafka Connect, only sinks have these keys."""
    prefix = "errors.deadletterqueue."
    return [
        ConfigKey(f"{prefix}topic.name", ConfigType.STRING, "", "Topic of the dead letter queue for failed records; "
                  "empty: no dead letter queue.", _MEDIUM, ERRORS, 6, Width.MEDIUM, "Dead Letter Queue Topic Name"),
        ConfigKey(f"{prefix}topic.replication.factor", ConfigType.SHORT, 3, "Replication factor of the dead letter "
                  "queue topic if it is created.", _MEDIUM, ERRORS, 7, Width.MEDIUM,
                  "Dead Letter Queue Topic Replication Factor"),
        ConfigKey(f"{prefix}context.headers.enable", ConfigType.BOOLEAN, False, "Add headers with the error context to "
                  "records in the dead letter queue.", _MEDIUM, ERRORS, 8, Width.MEDIUM,
                  "Enable Error Context Headers"),
    ]  # fmt: skip


def framework_value(props: Mapping[str, str | None], key: str) -> Any:
    """Return the typed value of one of the framework's keys, or the key's default. Raises ConfigError."""
    definition = _sink_keys()[key]
    text = props.get(key)
    return definition.default if text is None else definition.parse(text)


@cache
def _sink_keys() -> Mapping[str, ConfigKey]:
    return sink_def({}).keys


def source_def(worker: Mapping[str, str], props: Mapping[str, str | None]) -> ConfigDef:
    """Return the keys that all sources share, and the keys of the topic creation groups in `props`.

    The default of each converter key is its value in `worker`.
    """
    string = ConfigType.STRING
    keys = [
        ConfigKey("topic.creation.groups", ConfigType.LIST, [], "Groups of configurations for new topics.", _LOW,
                  TOPIC_CREATION, 1, Width.LONG, "Topic Creation Groups", (_check_unique,)),
        ConfigKey("exactly.once.support", string, "requested", "required: reject a configuration without exactly-once "
                  "support; requested: accept it.", _MEDIUM, EXACTLY_ONCE, 2, Width.SHORT, "Exactly once support",
                  (_one_of_check("requested", "required", fold=True),)),
        ConfigKey("transaction.boundary", string, "poll", "poll: commit a transaction after each poll; interval: "
                  "after an interval; connector: when the connector requests it.",
                  _MEDIUM, EXACTLY_ONCE, 3, Width.SHORT, "Transaction Boundary",
                  (_one_of_check("poll", "interval", "connector", fold=True),)),
        ConfigKey("transaction.boundary.interval.ms", ConfigType.LONG, None, "Interval between transaction commits, "
                  "in ms, if transaction.boundary is interval.", _LOW,
                  EXACTLY_ONCE, 4, Width.SHORT, "Transaction boundary interval", (_check_interval,)),
        ConfigKey("offsets.storage.topic", string, None, "A separate offsets topic for this "
                  "connector, in distributed mode; created as a compacted topic.", _LOW,
                  OFFSETS_TOPIC, 1, Width.LONG, "Offsets topic", (_check_not_blank,)),
    ]  # fmt: skip
    keys += _dead_letter_queue_keys()
    return base_def(worker).merged(ConfigDef(keys)).merged(ConfigDef(_topic_creation_keys(props)))


def _topic_creation_keys(props: Mapping[str, str | None]) -> list[ConfigKey]:
    if not any(name.startswith("topic.creation.") for name in props):
        return []
    groups = parse_value("topic.creation.groups", props.get("topic.creation.groups") or "", ConfigType.LIST)
    keys = _topic_group_keys("default", "default", REQUIRED, REQUIRED)
    factor = _parse_number(props.get("topic.creation.default.replication.factor"))
    partitions = _parse_number(props.get("topic.creation.default.partitions"))
    for group in dict.fromkeys(groups):
        if group and group != "default":
            keys += _topic_group_keys(group, f"{TOPIC_CREATION}: {group}", factor, partitions)
    return keys


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None


def _topic_group_keys(name: str, group: str, factor: Any, partitions: Any) -> list[ConfigKey]:
    prefix = f"topic.creation.{name}."
    including = [".*"] if name == "default" else []
    return [
        ConfigKey(f"{prefix}include", ConfigType.LIST, including, "Regular expressions of topics in this group.", _LOW,
                  group, 1, Width.LONG, f"Inclusion Topic Pattern for {group}", (_check_regexes,)),
        ConfigKey(f"{prefix}exclude", ConfigType.LIST, [], "Regular expressions of topics excluded from this group.",
                  _LOW, group, 2, Width.LONG, f"Exclusion Topic Pattern for {group}", (_check_regexes,)),
        ConfigKey(f"{prefix}replication.factor", ConfigType.SHORT, factor, "Replication factor of new topics; -1: the "
                  "broker's default.", _LOW, group, 3, Width.LONG, f"Replication Factor for Topics in {group}",
                  (_count_check("Replication factor"),)),
        ConfigKey(f"{prefix}partitions", ConfigType.INT, partitions, "Number of partitions of new topics; -1: the "
                  "broker's default.", _LOW, group, 4, Width.LONG, f"Partition Count for Topics in {group}",
                  (_count_check("Number of partitions"),)),
    ]  # fmt: skip
