"""The admin client's methods for replicas: reassignments, elections, the metadata quorum, log directories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import BrokerError, error_or_none
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
)
from headrace_broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from headrace_broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from headrace_broker.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition, group_by_topic

T = TypeVar("T")

_QUORUM = "the metadata quorum"

PREFERRED, UNCLEAN = 0, 1
"""Election types."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An ongoing reassignment of a partition to other replicas."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The state of the metadata quorum. `endpoints` is {node id: [(listener name, host, port)]}."""

    state: DescribeQuorumResponsePartitionData
    endpoints: Mapping[int, Sequence[tuple[str, str, int]]]


class ReplicaAdmin:
    """The admin client's methods for replicas. The subclass `admin.Admin` provides the attributes declared here."""

    cluster: Cluster
    _retry: Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
    _request_node: Callable[[int | None, Any, str], Awaitable[Any]]

    async def _request_controller(self, message: Any, subject: str, action: str) -> Any:
        """Send a request to the controller and return the response; retry after a retriable top-level error.

        Raises BrokerError for any other top-level error. `subject` names the object of the request and `action` names
        the operation in error texts.
        """

        async def attempt() -> Any:
            response = await self.cluster.request_controller(message)
            _raise_on_error(response.error_code, subject, _response_error_message(response))
            return response

        return await self._retry(attempt, action)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the ongoing reassignments of these partitions (None = of all partitions). Raises BrokerError."""
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in group_by_topic(partitions).items()
            ]
        message = ListPartitionReassignmentsRequest(topics=topics)
        response = await self._request_controller(message, "partition reassignments", "listing reassignments")
        return {
            (topic.name, part.partition_index): Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    async def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_replication_factor: bool = True,
    ) -> dict[TopicPartition, BrokerError | None]:
        """Reassign each partition to its replicas in `targets`; return {partition: None or the error}.

        If the replicas of a partition are None, cancel the partition's ongoing reassignment.
        """
        message = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may_change_replication_factor,
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=_list_or_none(targets[name, index]))
                        for index in indexes
                    ],
                )
                for name, indexes in group_by_topic(targets).items()
            ],
        )
        response = await self._request_controller(message, "partition reassignments", "reassigning partitions")
        return {
            (topic.name, part.partition_index): error_or_none(
                part.error_code, f"{topic.name}-{part.partition_index}", part.error_message
            )
            for topic in response.responses
            for part in topic.partitions
        }

    async def elect_leaders(
        self, election_type: int, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elect leaders of these partitions; return {partition: None or the error}.

        If `partitions` is None, elect leaders of all partitions that need an election.
        """
        topics = None
        if partitions is not None:
            topics = [
                TopicPartitions(topic=name, partitions=items) for name, items in group_by_topic(partitions).items()
            ]
        message = ElectLeadersRequest(election_type=election_type, topic_partitions=topics)
        response = await self._request_controller(message, "leader election", "electing leaders")
        return {
            (topic.topic, part.partition_id): error_or_none(
                part.error_code, f"{topic.topic}-{part.partition_id}", part.error_message
            )
            for topic in response.replica_election_results
            for part in topic.partition_result
        }

    async def describe_quorum(self) -> QuorumDescription:
        """Return the leader and the replication state of the metadata quorum. Raises BrokerError."""
        return parse_quorum_description(
            await self._request_controller(build_quorum_request(), _QUORUM, "describing the quorum")
        )

    async def describe_log_dirs(self, broker_ids: Iterable[int]) -> dict[int, list[DescribeLogDirsResult]]:
        """Return the log directories of these brokers, with the replicas in each directory. Raises BrokerError."""
        found: dict[int, list[DescribeLogDirsResult]] = {}
        for broker_id in broker_ids:
            response = await self._request_node(
                broker_id, DescribeLogDirsRequest(topics=None), "describing log directories"
            )
            _raise_on_error(response.error_code, f"log directories of broker {broker_id}", None)
            found[broker_id] = response.results
        return found

    async def unregister_broker(self, broker_id: int) -> None:
        """Unregister a broker that was removed permanently. Raises BrokerError."""
        await self._request_controller(
            UnregisterBrokerRequest(broker_id=broker_id), f"broker {broker_id}", f"unregistering broker {broker_id}"
        )


def build_quorum_request() -> DescribeQuorumRequest:
    """Return the DescribeQuorum request for the metadata quorum."""
    partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
    return DescribeQuorumRequest(
        topics=[DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=partitions)]
    )


def parse_quorum_description(response: DescribeQuorumResponse) -> QuorumDescription:
    """Return the description in a DescribeQuorum response. Raises BrokerError."""
    _raise_on_error(response.error_code, _QUORUM, response.error_message)
    state = response.topics[0].partitions[0]
    _raise_on_error(state.error_code, _QUORUM, state.error_message)
    endpoints = {
        node.node_id: [(item.name, item.host, item.port) for item in node.listeners] for node in response.nodes
    }
    return QuorumDescription(state, endpoints)


def _list_or_none(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _response_error_message(response: Any) -> str | None:
    """Return the top-level error message of a response. For ElectLeaders, return the first partition's message."""
    if not isinstance(response, ElectLeadersResponse):
        message: str | None = getattr(response, "error_message", None)
        return message
    messages = (part.error_message for topic in response.replica_election_results for part in topic.partition_result)
    return next(messages, None)


def _raise_on_error(code: int, subject: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(code, subject, message)
