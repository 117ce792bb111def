"""ElectLeaders: preferred or unclean leader elections that an operator requests (KIP-460)."""

from __future__ import annotations

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.leadership import TopicConfigs, elect_leader
from headrace_broker.metadata.partition_changes import NO_LEADER, Election
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace_broker.protocol.metadata_records import MetadataRecord

_KINDS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, topic_configs: TopicConfigs
) -> ControllerResult[ElectLeadersResponse]:
    """Run the requested elections.

    If the request is for all partitions, the response contains only the partitions that needed an election. Raises
    ApiError INVALID_REQUEST for an unknown election type.
    """
    election = _KINDS.get(request.election_type)
    if election is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}.")
    records: list[MetadataRecord] = []
    response = ElectLeadersResponse()
    for name, indexes in _requested_partitions(image, request).items():
        results: list[PartitionResult] = []
        for index in indexes:
            code, message = _elect(image, name, index, topic_configs, election, records)
            if request.topic_partitions is not None or code != ErrorCode.ELECTION_NOT_NEEDED:
                results.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
        if results:
            response.replica_election_results.append(ReplicaElectionResult(topic=name, partition_result=results))
    return ControllerResult(response, records)


def _requested_partitions(image: MetadataImage, request: ElectLeadersRequest) -> dict[str, list[int]]:
    """Return the requested partitions by topic, without duplicates."""
    if request.topic_partitions is None:
        return {name: list(range(len(topic.partitions))) for name, topic in image.topics.items()}
    requested: dict[str, dict[int, None]] = {}
    for item in request.topic_partitions:
        requested.setdefault(item.topic, {}).update(dict.fromkeys(item.partitions))
    return {name: list(indexes) for name, indexes in requested.items()}


def _elect(
    image: MetadataImage,
    name: str,
    index: int,
    topic_configs: TopicConfigs,
    election: Election,
    records: list[MetadataRecord],
) -> tuple[ErrorCode, str | None]:
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}."
    partition = topic.partitions[index]
    is_preferred = election is Election.PREFERRED
    if partition.leader == partition.replicas[0] if is_preferred else partition.leader != NO_LEADER:
        code = ErrorCode.ELECTION_NOT_NEEDED
        return code, code.message
    record = elect_leader(image, topic, index, topic_configs, election)
    if record is None:
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return code, code.message
    records.append(record)
    return ErrorCode.NONE, None
