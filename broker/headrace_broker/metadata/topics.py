"""CreateTopics, DeleteTopics and CreatePartitions.

Each function reads an image and returns a `ControllerResult`. An error in one topic of a request is reported for that
topic and does not affect the other topics. If a request contains a topic several times, the topic has one result, with
INVALID_REQUEST. Rules and messages follow Kafka's controller (KIP-4, KIP-195, KIP-464).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace_broker.log.config import TOPIC_CONFIGS, resolve_config
from headrace_broker.metadata.configs import ConfigSizeLimit, topic_config_records
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.metadata.leadership import default_directory
from headrace_broker.metadata.placement import format_broker_ids, next_start, place_partitions
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace_broker.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from headrace_broker.protocol.metadata_records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, names_by_metric_name, topic_name_error
from headrace_broker.protocol.uuid_text import encode_uuid

RECORDS_PER_OPERATION_MAX = 10_000
ZERO_UUID = bytes(16)
_NamedTopic = TypeVar("_NamedTopic", CreatableTopic, CreatePartitionsTopic)
_ConfigResponses = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The partition count and replication factor that CreateTopics uses if the request contains -1."""

    num_partitions: int = 1
    replication_factor: int = 1


def create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    *,
    defaults: TopicDefaults,
    broker_properties: Mapping[str, str],
    new_id: Callable[[], bytes],
) -> ControllerResult[CreateTopicsResponse]:
    """Handle CreateTopics: create every valid topic of the request."""
    records: list[MetadataRecord] = []
    results: list[CreatableTopicResult] = []
    duplicates = duplicate_names(topic.name for topic in request.topics)
    existing_names = names_by_metric_name(image.topics)
    config_responses: _ConfigResponses = {}
    size_limit = ConfigSizeLimit()
    for topic in _without_duplicates(request.topics):
        try:
            if topic.name in duplicates:
                raise _duplicate_topic_error(topic.name)
            _check_new_name(image, topic.name, existing_names)
            _check_record_count(topic.name, len(records) + 1 + _count(topic, defaults) + len(topic.configs))
            start = len(image.topics) + len(results)
            result, created = _create_topic(
                image, topic, defaults, broker_properties, new_id, config_responses, size_limit, start
            )
            records += created
        except ApiError as error:
            result = CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
        results.append(result)
    if request.validate_only:
        records = []
    return ControllerResult(CreateTopicsResponse(topics=results), records)


def _count(topic: CreatableTopic, defaults: TopicDefaults) -> int:
    return len(topic.assignments) or (defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions)


def _check_record_count(name: str, count: int) -> None:
    """Raise ApiError POLICY_VIOLATION if `count`, the number of partitions and configs to create, is too large.

    The error text names the topic `name`. Called before the replicas are placed, so that an oversized request is
    rejected quickly.
    """
    if count > RECORDS_PER_OPERATION_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"Topic '{name}': one request may create at most {RECORDS_PER_OPERATION_MAX} partitions and configs.",
        )


def _create_topic(
    image: MetadataImage,
    topic: CreatableTopic,
    defaults: TopicDefaults,
    broker_properties: Mapping[str, str],
    new_id: Callable[[], bytes],
    config_responses: _ConfigResponses,
    size_limit: ConfigSizeLimit,
    start: int,
) -> tuple[CreatableTopicResult, list[MetadataRecord]]:
    assignments = _assign(image, topic, defaults, start)
    configs = {config.name: config.value for config in topic.configs}  # the last value counts, as in Apache Kafka
    config_records = topic_config_records(topic.name, configs, size_limit)
    topic_id = new_id()
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id), *config_records]
    records += _partition_records(image, topic_id, 0, assignments)
    set_values = {name: value for name, value in configs.items() if value is not None}
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        configs=_effective_configs(set_values, broker_properties, config_responses),
    )
    return result, records


def _effective_configs(
    values: Mapping[str, str], broker_properties: Mapping[str, str], config_responses: _ConfigResponses
) -> list[CreatableTopicConfigs]:
    """Return the effective configs of a topic: its own `values`, else `broker_properties`, else the defaults.

    Topics with equal `values` share one list in `config_responses`, because building the list is expensive.
    """
    key = tuple(sorted(values.items()))
    response = config_responses.get(key)
    if response is None:
        resolved = (resolve_config(name, values, broker_properties) for name in sorted(TOPIC_CONFIGS))
        response = config_responses[key] = [
            CreatableTopicConfigs(name=item.key.name, value=item.value, config_source=item.source, is_sensitive=False)
            for item in resolved
        ]
    return response


def duplicate_names(names: Iterable[str]) -> set[str]:
    """Return the names that occur more than once."""
    return {name for name, times in Counter(names).items() if times > 1}


def _without_duplicates(topics: Iterable[_NamedTopic]) -> Iterable[_NamedTopic]:
    return {topic.name: topic for topic in topics}.values()


def _duplicate_topic_error(name: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' appears more than once in the request.")


def _check_new_name(image: MetadataImage, name: str, existing_names: Mapping[str, str]) -> None:
    name_error = topic_name_error(name)
    if name_error is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, name_error)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' is reserved for the metadata log.")
    other = existing_names.get(name.replace(".", "_"))
    if other is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _assign(image: MetadataImage, topic: CreatableTopic, defaults: TopicDefaults, start: int) -> list[tuple[int, ...]]:
    if topic.assignments:
        return _manual_assignment(image, topic)
    replication_factor = topic.replication_factor
    if replication_factor < -1 or replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Topic '{topic.name}': replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}': number of partitions was set to an invalid non-positive value.",
        )
    if replication_factor == -1:
        replication_factor = defaults.replication_factor
    return place_partitions(image, start, _count(topic, defaults), replication_factor, topic.name)


def _manual_assignment(image: MetadataImage, topic: CreatableTopic) -> list[tuple[int, ...]]:
    if topic.replication_factor != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    assignments: dict[int, tuple[int, ...]] = {}
    factor = len(topic.assignments[0].broker_ids)
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in assignments:
            raise _assignment_error(topic.name, f"found multiple manual assignments for partition {index}")
        assignments[index] = _validate_replicas(image, topic.name, index, assignment.broker_ids, factor)
    if sorted(assignments) != list(range(len(assignments))):
        raise _assignment_error(topic.name, "partitions should be a consecutive 0-based integer sequence")
    return [assignments[index] for index in range(len(assignments))]


def _validate_replicas(
    image: MetadataImage, name: str, index: int, broker_ids: Sequence[int], factor: int
) -> tuple[int, ...]:
    if not broker_ids or len(set(broker_ids)) != len(broker_ids):
        raise _assignment_error(
            name, f"partition {index} needs a list of distinct broker ids, not {format_broker_ids(broker_ids)}"
        )
    if len(broker_ids) != factor:
        raise _assignment_error(
            name, f"partition {index} has {len(broker_ids)} replicas, but the other partitions have {factor}"
        )
    unknown = [broker for broker in broker_ids if broker not in image.brokers]
    if unknown:
        raise _assignment_error(name, f"partition {index} is assigned to broker {unknown[0]}, which is not registered")
    live = {broker.broker_id for broker in image.live_brokers()}
    if not live.intersection(broker_ids):
        raise _assignment_error(name, f"all brokers of partition {index} are fenced or in controlled shutdown")
    return tuple(broker_ids)


def _assignment_error(name: str, reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Topic '{name}': {reason}.")


def _partition_records(
    image: MetadataImage, topic_id: bytes, first: int, assignments: Sequence[tuple[int, ...]]
) -> list[MetadataRecord]:
    live = {broker.broker_id: broker for broker in image.live_brokers()}
    records: list[MetadataRecord] = []
    for index, replicas in enumerate(assignments, first):
        isr = [broker for broker in replicas if broker in live]
        directories = [default_directory(image, broker) for broker in replicas]
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=isr,
                removing_replicas=[],
                adding_replicas=[],
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=directories,
            )
        )
    return records


def delete_topics(
    image: MetadataImage, requested: Sequence[tuple[str | None, bytes]]
) -> ControllerResult[DeleteTopicsResponse]:
    """Delete topics, each identified by (name, zero id) or by (None, id).

    A topic that was deleted and created again has a new id, so a delete by id does not affect it. A topic that the
    request contains several times is not deleted.
    """
    failed: list[DeletableTopicResult] = []
    found: dict[bytes, DeletableTopicResult] = {}
    for (name, topic_id), times in Counter(requested).items():
        try:
            topic = _topic_to_delete(image, name, topic_id, times)
        except ApiError as error:
            failed.append(
                DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)
            )
            continue
        is_duplicate = topic.topic_id in found  # one item has the topic's name, and one its id
        result = found.setdefault(topic.topic_id, DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
        if is_duplicate:
            duplicate = _duplicate_topic_error(topic.name)
            result.error_code, result.error_message = duplicate.code, duplicate.message
    records: list[MetadataRecord] = [
        RemoveTopicRecord(topic_id=topic_id) for topic_id, result in found.items() if not result.error_code
    ]
    return ControllerResult(DeleteTopicsResponse(responses=[*found.values(), *failed]), records)


def _topic_to_delete(image: MetadataImage, name: str | None, topic_id: bytes, times: int) -> TopicImage:
    if name is None and topic_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times > 1:
        raise _duplicate_topic_error(name if name is not None else encode_uuid(topic_id))
    if name is None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return topic
    if topic_id != ZERO_UUID:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{name}' is identified by both its name and its id; send only one of them.",
        )
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
    return topic


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest
) -> ControllerResult[CreatePartitionsResponse]:
    """Handle CreatePartitions: increase the number of partitions of each topic of the request."""
    records: list[MetadataRecord] = []
    results: list[CreatePartitionsTopicResult] = []
    duplicates = duplicate_names(topic.name for topic in request.topics)
    for topic in _without_duplicates(request.topics):
        result = CreatePartitionsTopicResult(name=topic.name, error_code=0, error_message=None)
        try:
            if topic.name in duplicates:
                raise _duplicate_topic_error(topic.name)
            records += _add_partitions(image, topic, len(records))
        except ApiError as error:
            result = CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
        results.append(result)
    return ControllerResult(CreatePartitionsResponse(results=results), [] if request.validate_only else records)


def _add_partitions(image: MetadataImage, requested: CreatePartitionsTopic, records: int) -> list[MetadataRecord]:
    topic = image.topics.get(requested.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{requested.name}' does not exist.")
    current = len(topic.partitions)
    if requested.count == current:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic '{requested.name}' already has {current} partition(s).")
    if requested.count < current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {requested.name} currently has {current} partition(s); "
            f"{requested.count} would not be an increase.",
        )
    added = requested.count - current
    _check_record_count(requested.name, records + added)
    factor = len(topic.partitions[0].replicas)
    if requested.assignments is None:
        start = next_start(image, topic.partitions[-1].replicas[0])
        assignments = place_partitions(image, start, added, factor, requested.name)
    else:
        if len(requested.assignments) != added:
            raise _assignment_error(
                requested.name,
                f"{added} partition(s) are added, but {len(requested.assignments)} assignment(s) were given",
            )
        assignments = [
            _validate_replicas(image, requested.name, current + index, item.broker_ids, factor)
            for index, item in enumerate(requested.assignments)
        ]
    return _partition_records(image, topic.topic_id, current, assignments)
