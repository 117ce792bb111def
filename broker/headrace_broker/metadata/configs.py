"""AlterConfigs and IncrementalAlterConfigs of topics and brokers (KIP-339, KIP-226).

`log.config` defines the valid keys and values. The only dynamic broker configs are those that supply defaults for topic
configs. They are set for one broker or, with an empty resource name, for all brokers.

The configs in `ELECTION_KEYS` affect elections. When one of them changes, the batch of metadata records that stores the
change also updates the affected partitions. Unlike the other dynamic configs, the configs in `ELECTION_KEYS` cannot be
set for a single broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace_broker.log.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigType,
    InvalidConfigError,
    format_value,
    validate_broker_configs,
    validate_topic_configs,
)
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from headrace_broker.metadata.leadership import TopicConfigs, apply_changed_election_configs
from headrace_broker.metadata.protections import PROTECTING_KEYS, split_listener_prefix
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.metadata_records import ConfigRecord, MetadataRecord
from headrace_broker.protocol.topic_names import topic_name_error

ELECTION_KEYS = frozenset(("min.insync.replicas", "unclean.leader.election.enable"))
CLUSTER_WIDE = ""
_UNSUPPORTED_RESOURCES = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""The names of the resource types whose configs cannot be altered on this broker."""
CONFIG_CHARACTERS_MAX = 1 << 20
"""Limit on the total length of the config values in one request, and on the length of one resulting value."""


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(ConfigOperation)
Alteration = tuple[str, int, str | None]
"""(config key, ConfigOperation, value) of one alteration in an IncrementalAlterConfigs request."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The configs, as (config key, value), that replace all configs of a resource (AlterConfigs)."""

    configs: Sequence[tuple[str, str | None]]


Changes = Sequence[Alteration] | Replacement
"""The changes of one resource: a replacement of all configs, or alterations of single configs."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """The topic or broker whose configs a request changes. Error messages about it start with `label`."""

    kind: int
    name: str
    label: str
    keys: Mapping[str, ConfigKey]
    validate: Callable[[Mapping[str, str | None]], None]


class ConfigSizeLimit:
    """Limits the total length of the config values in one request, because their validation blocks the event loop."""

    def __init__(self) -> None:
        self._characters = 0

    def add(self, values: Iterable[str | None]) -> None:
        """Add the lengths of the values. Raises ApiError POLICY_VIOLATION if the total exceeds the limit."""
        self._characters += sum(len(value) for value in values if value is not None)
        if self._characters > CONFIG_CHARACTERS_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"The config values of one request may have at most {CONFIG_CHARACTERS_MAX} characters in total.",
            )


def topic_config_records(
    topic: str, configs: Mapping[str, str | None], size_limit: ConfigSizeLimit
) -> list[MetadataRecord]:
    """Return the records that set a new topic's configs. Raises ApiError INVALID_CONFIG or POLICY_VIOLATION."""
    size_limit.add(configs.values())
    resource = _topic(topic)
    _check_values(resource, configs)
    return [_record(resource, name, value) for name, value in configs.items()]


def alter_configs(
    image: MetadataImage,
    resources: Sequence[tuple[int, str, Changes]],
    topic_configs: TopicConfigs,
    *,
    validate_only: bool = False,
) -> ControllerResult[list[ApiError | None]]:
    """Alter the configs of `resources`, a sequence of (resource type, name, changes).

    If one change of a resource is invalid, no change of this resource is applied. The response contains one entry per
    resource: None, or the error.
    """
    records: list[MetadataRecord] = []
    results: list[ApiError | None] = []
    size_limit = ConfigSizeLimit()
    times = Counter((kind, name) for kind, name, _ in resources)
    for kind, name, changes in resources:
        try:
            if times[kind, name] > 1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Each resource must appear at most once, but '{name}' appears more than once.",
                )
            size_limit.add(value for *_, value in _alterations(changes))
            records += _alter_resource(image, _resource(image, kind, name), changes)
            results.append(None)
        except ApiError as error:
            results.append(error)
    if validate_only:
        return ControllerResult(results)
    return ControllerResult(results, [*records, *_partition_records(image, records, topic_configs)])


def _alter_resource(image: MetadataImage, resource: _Resource, changes: Changes) -> list[MetadataRecord]:
    before = image.configs.get((resource.kind, resource.name), {})
    for name, times in Counter(name for name, *_ in _alterations(changes)).items():
        if times > 1:
            raise _error(resource, f"config {name} is altered twice in one request", ErrorCode.INVALID_REQUEST)
    after = {} if isinstance(changes, Replacement) else dict(before)
    for name, operation, value in _alterations(changes):
        _check_operation(resource, name, operation, value)
        if operation != ConfigOperation.DELETE:
            _check_known(resource, name)
        _alter(resource, after, (name, operation, value))
    _check_values(
        resource, {name: value for name, value in after.items() if _is_checked(resource, before, name, value)}
    )
    _check_min_isr_is_kept(resource, before, after)
    records = [_record(resource, name, value) for name, value in after.items() if before.get(name) != value]
    return records + [_record(resource, name, None) for name in before if name not in after]


def _is_checked(resource: _Resource, before: Mapping[str, str], name: str, value: str) -> bool:
    """Return whether to validate the config. An unchanged config that only another version knows is kept as it is."""
    return name in resource.keys or before.get(name) != value


def _alterations(changes: Changes) -> Sequence[Alteration]:
    if isinstance(changes, Replacement):
        return [(name, ConfigOperation.SET, value) for name, value in changes.configs]
    return changes


def _check_operation(resource: _Resource, name: str, operation: int, value: str | None) -> None:
    if operation not in _OPERATIONS:
        raise _error(resource, f"config {name}: unknown operation {operation}", ErrorCode.INVALID_REQUEST)
    if value is None and operation != ConfigOperation.DELETE:
        raise _error(resource, f"config {name} needs a value", ErrorCode.INVALID_REQUEST)


def _alter(resource: _Resource, values: dict[str, str], alteration: Alteration) -> None:
    """Apply the alteration to `values`.

    The deletion of a config that is not set, or that does not exist, is not an error: kafka-reassign-partitions deletes
    throttle configs without checking whether they are set.
    """
    name, operation, value = alteration
    if operation == ConfigOperation.DELETE:
        values.pop(name, None)
        return
    assert value is not None
    is_set = operation == ConfigOperation.SET
    values[name] = value if is_set else _edited_list(resource, values, name, ConfigOperation(operation), value)


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
    image: MetadataImage, changed: Sequence[MetadataRecord], topic_configs: TopicConfigs
) -> list[MetadataRecord]:
    """Return the partition change records that become necessary if `changed` alters election configs."""
    topics: dict[str, None] = {}
    for record in changed:
        if isinstance(record, ConfigRecord) and record.name in ELECTION_KEYS:
            topics.update(
                dict.fromkeys([record.resource_name] if record.resource_type == TOPIC_RESOURCE else image.topics)
            )
    return (
        apply_changed_election_configs(apply_records(image, changed, image.offset, image.epoch), topics, topic_configs)
        if topics
        else []
    )


# -- resources -------------------------------------------------------------------------------------------------------


def _resource(image: MetadataImage, kind: int, name: str) -> _Resource:
    if kind == BROKER_RESOURCE:
        return _broker(name)
    if kind in _UNSUPPORTED_RESOURCES:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Configs of {_UNSUPPORTED_RESOURCES[kind]} '{name}' cannot be altered yet."
        )
    if kind != TOPIC_RESOURCE:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind} of resource '{name}'.")
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topics have no default configs: the topic name must not be empty.")
    name_error = topic_name_error(name)
    if name_error is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, name_error)
    if name not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return _topic(name)


def _topic(name: str) -> _Resource:
    return _Resource(TOPIC_RESOURCE, name, f"Topic '{name}'", TOPIC_CONFIGS, validate_topic_configs)


def _broker(name: str) -> _Resource:
    if name != CLUSTER_WIDE and not name.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker id.")
    label = "Cluster-wide broker default" if name == CLUSTER_WIDE else f"Broker {name}"
    return _Resource(BROKER_RESOURCE, name, label, BROKER_CONFIGS, validate_broker_configs)


def _check_known(resource: _Resource, name: str) -> None:
    if resource.kind == BROKER_RESOURCE:
        _check_supported(resource, name)
    if name not in resource.keys:
        _check_values(resource, {name: ""})
    if resource.kind == BROKER_RESOURCE and resource.name != CLUSTER_WIDE and name in ELECTION_KEYS:
        raise _error(resource, f"{name} can only be set for all brokers: use --entity-default")


def _check_supported(resource: _Resource, name: str) -> None:
    """Raise ApiError INVALID_CONFIG for a key that protects a cluster. The error must not suggest where to set it."""
    for _, base in split_listener_prefix(name):
        if base in PROTECTING_KEYS or base.startswith(("ssl.", "sasl.")):
            lacking = PROTECTING_KEYS.get(base, "TLS and SASL")
            raise _error(resource, f"{name} is not supported yet: headrace would run without {lacking}")


def _check_values(resource: _Resource, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is not None and len(value) > CONFIG_CHARACTERS_MAX:
            raise _error(
                resource,
                f"the value of {name} has {len(value)} characters, but at most {CONFIG_CHARACTERS_MAX} are allowed",
            )
    try:
        resource.validate(values)
    except InvalidConfigError as error:
        code = ErrorCode.INVALID_REQUEST if resource.kind == BROKER_RESOURCE else ErrorCode.INVALID_CONFIG
        raise _error(resource, str(error), code) from None


def _check_min_isr_is_kept(resource: _Resource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise ApiError INVALID_CONFIG if the cluster-wide min.insync.replicas is removed (see `metadata.cluster`).

    `before` and `after` contain the configs of `resource` before and after the change.
    """
    name = "min.insync.replicas"
    if resource.kind == BROKER_RESOURCE and resource.name == CLUSTER_WIDE and name in before and name not in after:
        raise _error(resource, f"{name} cannot be removed: set another value instead")


def _error(resource: _Resource, reason: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> ApiError:
    return ApiError(code, f"{resource.label}: {reason}")


def _record(resource: _Resource, name: str, value: str | None) -> MetadataRecord:
    return ConfigRecord(resource_type=resource.kind, resource_name=resource.name, name=name, value=value)
