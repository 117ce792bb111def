"""Decisions about configurations of topics (KIP-339, incremental; the older AlterConfigs replaces the whole set).

Which keys and values a topic may have is the log's knowledge (`log.config`, data and checks without any IO).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from headrace_broker.log.config import TOPIC_CONFIGS, ConfigError, ConfigType, format_value, validate_topic_configs
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.topic_names import topic_name_fault
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.metadata_records import ConfigRecord, MetadataRecord


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Alteration = tuple[str, int, str | None]
"""(key, ConfigOperation, value)."""


def topic_config_records(topic: str, configs: Mapping[str, str | None]) -> list[MetadataRecord]:
    """The records that set a new topic's configs; raises ApiError(INVALID_CONFIG)."""
    _check_values(topic, configs)
    return [_record(topic, name, value) for name, value in configs.items()]


def alter_topic_configs(image: MetadataImage, topic: str, alterations: Sequence[Alteration]) -> list[MetadataRecord]:
    """The records that carry out IncrementalAlterConfigs on one topic; raises ApiError."""
    _check_exists(image, topic)
    before = image.topic_configs(topic)
    after: dict[str, str] = dict(before)
    seen: set[str] = set()
    for name, operation, value in alterations:
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic '{topic}': config {name} is altered twice in one request")
        seen.add(name)
        _check_known(topic, name)
        _alter(topic, after, name, operation, value)
    return _changed(topic, before, after)


def replace_topic_configs(image: MetadataImage, topic: str, values: Mapping[str, str | None]) -> list[MetadataRecord]:
    """The records that make `values` the topic's whole set of configs (AlterConfigs); raises ApiError."""
    _check_exists(image, topic)
    for name in values:
        _check_known(topic, name)
    after = {name: value for name, value in values.items() if value is not None}
    return _changed(topic, image.topic_configs(topic), after)


def _alter(topic: str, values: dict[str, str], name: str, operation: int, value: str | None) -> None:
    if operation == ConfigOperation.DELETE:
        values.pop(name, None)
        return
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic '{topic}': config {name} needs a value")
    if operation == ConfigOperation.SET:
        values[name] = value
    elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        if TOPIC_CONFIGS[name].type != ConfigType.LIST:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Topic '{topic}': can't {ConfigOperation(operation).name} to key {name} because its type is not LIST.",
            )
        current = [part for part in values.get(name, format_value(TOPIC_CONFIGS[name].default)).split(",") if part]
        parts = [part.strip() for part in value.split(",")]
        if operation == ConfigOperation.APPEND:
            current += [part for part in parts if part not in current]
        else:
            current = [part for part in current if part not in parts]
        values[name] = ",".join(current)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic '{topic}': config {name}: unknown operation {operation}")


def _changed(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[MetadataRecord]:
    _check_values(topic, after)
    records = [_record(topic, name, value) for name, value in after.items() if before.get(name) != value]
    return records + [_record(topic, name, None) for name in before if name not in after]


def _record(topic: str, name: str, value: str | None) -> MetadataRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)


def _check_exists(image: MetadataImage, topic: str) -> None:
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if topic not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")


def _check_known(topic: str, name: str) -> None:
    if name not in TOPIC_CONFIGS:
        _check_values(topic, {name: ""})


def _check_values(topic: str, values: Mapping[str, str | None]) -> None:
    try:
        validate_topic_configs(values)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Topic '{topic}': {error}") from None


def alter_configs(
    image: MetadataImage,
    resources: Sequence[tuple[int, str, Sequence[Alteration] | Mapping[str, str | None]]],
    *,
    validate_only: bool = False,
) -> Outcome[list[ApiError | None]]:
    """One result per (resource type, name, changes): None when done; a mapping replaces, a sequence alters."""
    records: list[MetadataRecord] = []
    results: list[ApiError | None] = []
    times = Counter((kind, name) for kind, name, _ in resources)
    for kind, name, changes in resources:
        try:
            if times[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Each resource must appear at most once, '{name}' does not.")
            if kind == BROKER_RESOURCE:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Broker {name or 'default'}: configs of a broker are set in its properties file, then restart it.",
                )
            if kind != TOPIC_RESOURCE:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Resource type {kind} of '{name}' has no configs here.")
            if isinstance(changes, Mapping):
                records += replace_topic_configs(image, name, changes)
            else:
                records += alter_topic_configs(image, name, changes)
            results.append(None)
        except ApiError as error:
            results.append(error)
    return Outcome(results, [] if validate_only else records)
