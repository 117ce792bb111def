"""ElectLeaders: preferred or unclean leader elections that an operator requests (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    If the request contains a partition several times, all results of the partition are equal. If the request is for all
    partitions, the response contains only the partitions that needed an election. Raises ApiError INVALID_REQUEST for
    an unknown election type.
    """
    election = _KINDS.get(request.election_type)
    if election is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}.")
    records: list[MetadataRecord] = []
    response = ElectLeadersResponse()
    outcomes: dict[tuple[str, int], tuple[ErrorCode, str | None]] = {}
    for name, indexes in _requested_partitions(image, request):
        results: list[PartitionResult] = []
        for index in indexes:
            if (name, index) not in outcomes:
                outcomes[name, index] = _elect(image, name, index, topic_configs, election, records)
            code, message = outcomes[name, index]
            if request.topic_partitions is not None or code != ErrorCode.ELECTION_NOT_NEEDED:
                results.append(PartitionResult(partition_id=index, error_code=code, error_message=message))
        if results:
            response.replica_election_results.append(ReplicaElectionResult(topic=name, partition_result=results))
    return ControllerResult(response, records)


def _requested_partitions(image: MetadataImage, request: ElectLeadersRequest) -> Iterable[tuple[str, Sequence[int]]]:
    """Return the topics of the request, or all topics, with their requested partitions."""
    if request.topic_partitions is None:
        return [(name, range(len(topic.partitions))) for name, topic in image.topics.items()]
    return [(item.topic, item.partitions) for item in request.topic_partitions]


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
