"""Decisions about configurations of topics and brokers (KIP-339, KIP-226; AlterConfigs replaces the whole set).

Which keys and values there are is the log's knowledge (`log.config`, data and checks without any IO).  Of a broker's
keys those can be altered that give topics their defaults: for one broker, or (name "") for all of them.  What elections
rest on, `ELECTION_KEYS`, takes effect on the partitions in the same batch, and is one for the whole cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace_broker.log.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigError,
    ConfigKey,
    ConfigType,
    format_value,
    validate_broker_configs,
    validate_topic_configs,
)
from headrace_broker.metadata.delta import replayed
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from headrace_broker.metadata.leadership import TopicRules, config_changed
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.metadata_records import ConfigRecord, MetadataRecord
from headrace_broker.protocol.topic_names import topic_name_fault

ELECTION_KEYS = frozenset(("min.insync.replicas", "unclean.leader.election.enable"))
CLUSTER_WIDE = ""
CHARACTERS_MAX = 1 << 20
"""What one decision may be given as values of configs, and how long one value may become."""


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Alteration = tuple[str, int, str | None]
"""(key, ConfigOperation, value)."""

Changes = Sequence[Alteration] | Mapping[str, str | None]
"""A mapping replaces the whole set, a sequence alters single keys."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """Something that has configs: `label` begins its error messages."""

    kind: int
    name: str
    label: str
    keys: Mapping[str, ConfigKey]
    validate: Callable[[Mapping[str, str | None]], None]


class Characters:
    """Counts what one decision is given as values: it would have to be checked while everybody waits."""

    def __init__(self) -> None:
        self._given = 0

    def take(self, values: Iterable[str | None]) -> None:
        """Raises ApiError(POLICY_VIOLATION)."""
        self._given += sum(len(value) for value in values if value is not None)
        if self._given > CHARACTERS_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"One request may give configs of at most {CHARACTERS_MAX} characters."
            )


def topic_config_records(topic: str, configs: Mapping[str, str | None], given: Characters) -> list[MetadataRecord]:
    """The records that set a new topic's configs; raises ApiError(INVALID_CONFIG, POLICY_VIOLATION)."""
    given.take(configs.values())
    resource = _topic(topic)
    _check_values(resource, configs)
    return [_record(resource, name, value) for name, value in configs.items()]


def alter_configs(
    image: MetadataImage,
    resources: Sequence[tuple[int, str, Changes]],
    rules: TopicRules,
    *,
    validate_only: bool = False,
) -> Outcome[list[ApiError | None]]:
    """One result per (resource type, name, changes), None when done; all changes of one resource happen or none."""
    records: list[MetadataRecord] = []
    results: list[ApiError | None] = []
    given = Characters()
    times = Counter((kind, name) for kind, name, _ in resources)
    for kind, name, changes in resources:
        try:
            if times[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Each resource must appear at most once, '{name}' does not.")
            given.take(changes.values() if isinstance(changes, Mapping) else [value for _, _, value in changes])
            records += _altered(image, _resource(image, kind, name), changes)
            results.append(None)
        except ApiError as error:
            results.append(error)
    if validate_only:
        return Outcome(results)
    return Outcome(results, [*records, *_partition_records(image, records, rules)])


def _altered(image: MetadataImage, resource: _Resource, changes: Changes) -> list[MetadataRecord]:
    before = image.configs.get((resource.kind, resource.name), {})
    if isinstance(changes, Mapping):
        for name in changes:
            _check_known(resource, name)
        after = {name: value for name, value in changes.items() if value is not None}
    else:
        after = dict(before)
        for name, times in Counter(name for name, _, _ in changes).items():
            if times > 1:
                raise _error(resource, f"config {name} is altered twice in one request", ErrorCode.INVALID_REQUEST)
        for alteration in changes:
            if not _takes_back_nothing(resource, before, alteration):
                _check_known(resource, alteration[0])
            _alter(resource, after, alteration)
    _check_values(resource, after)
    _check_kept(resource, before, after)
    records = [_record(resource, name, value) for name, value in after.items() if before.get(name) != value]
    return records + [_record(resource, name, None) for name in before if name not in after]


def _takes_back_nothing(resource: _Resource, before: Mapping[str, str], alteration: Alteration) -> bool:
    """kafka-reassign-partitions takes back throttles from brokers that never had any; there is nothing to refuse."""
    name, operation, _ = alteration
    return resource.kind == BROKER_RESOURCE and operation == ConfigOperation.DELETE and name not in before


def _alter(resource: _Resource, values: dict[str, str], alteration: Alteration) -> None:
    name, operation, value = alteration
    if operation == ConfigOperation.DELETE:
        values.pop(name, None)
        return
    if value is None:
        raise _error(resource, f"config {name} needs a value", ErrorCode.INVALID_REQUEST)
    if operation == ConfigOperation.SET:
        values[name] = value
    elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        values[name] = _edited_list(resource, values, name, ConfigOperation(operation), value)
    else:
        raise _error(resource, f"config {name}: unknown operation {operation}", ErrorCode.INVALID_REQUEST)


def _edited_list(
    resource: _Resource, values: Mapping[str, str], name: str, operation: ConfigOperation, value: str
) -> str:
    key = resource.keys[name]
    if key.type != ConfigType.LIST:
        raise _error(resource, f"can't {operation.name} to key {name} because its type is not LIST.")
    current = [part for part in values.get(name, format_value(key.default)).split(",") if part]
    parts = dict.fromkeys(part.strip() for part in value.split(","))
    if operation is ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*current, *parts]))
    return ",".join(part for part in current if part not in parts)


def _partition_records(
    image: MetadataImage, changed: Sequence[MetadataRecord], rules: TopicRules
) -> list[MetadataRecord]:
    """What becomes of partitions whose elections follow other rules from now on."""
    topics: dict[str, None] = {}
    for record in changed:
        if isinstance(record, ConfigRecord) and record.name in ELECTION_KEYS:
            topics.update(
                dict.fromkeys([record.resource_name] if record.resource_type == TOPIC_RESOURCE else image.topics)
            )
    return config_changed(replayed(image, changed, image.offset, image.epoch), topics, rules) if topics else []


# -- resources -------------------------------------------------------------------------------------------------------


def _resource(image: MetadataImage, kind: int, name: str) -> _Resource:
    if kind == BROKER_RESOURCE:
        return _broker(name)
    if kind != TOPIC_RESOURCE:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Resource type {kind} of '{name}' has no configs here.")
    fault = topic_name_fault(name)
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return _topic(name)


def _topic(name: str) -> _Resource:
    return _Resource(TOPIC_RESOURCE, name, f"Topic '{name}'", TOPIC_CONFIGS, validate_topic_configs)


def _broker(name: str) -> _Resource:
    if name != CLUSTER_WIDE and not name.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"'{name}' is not the id of a broker.")
    label = "Default of all brokers" if name == CLUSTER_WIDE else f"Broker {name}"
    return _Resource(BROKER_RESOURCE, name, label, BROKER_CONFIGS, validate_broker_configs)


def _check_known(resource: _Resource, name: str) -> None:
    if name not in resource.keys:
        _check_values(resource, {name: ""})
    if resource.kind == BROKER_RESOURCE and resource.name != CLUSTER_WIDE and name in ELECTION_KEYS:
        raise _error(resource, f"{name} is the same for all brokers: set it with --entity-default")


def _check_values(resource: _Resource, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is not None and len(value) > CHARACTERS_MAX:
            raise _error(resource, f"{name} would have {len(value)} characters, at most {CHARACTERS_MAX} are allowed")
    try:
        resource.validate(values)
    except ConfigError as error:
        raise _error(resource, str(error)) from None


def _check_kept(resource: _Resource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """The cluster's min.insync.replicas, once in the log, stays there (KIP-966): see `metadata.cluster`."""
    name = "min.insync.replicas"
    if resource.kind == BROKER_RESOURCE and resource.name == CLUSTER_WIDE and name in before and name not in after:
        raise _error(resource, f"{name} cannot be removed, the next controller's file would count: set another value")


def _error(resource: _Resource, fault: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> ApiError:
    return ApiError(code, f"{resource.label}: {fault}")


def _record(resource: _Resource, name: str, value: str | None) -> MetadataRecord:
    return ConfigRecord(resource_type=resource.kind, resource_name=resource.name, name=name, value=value)
