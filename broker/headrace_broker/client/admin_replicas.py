"""What the admin client does with replicas: reassignments, elections, the metadata quorum, log directories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import BrokerError, error_of
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
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition, by_topic

T = TypeVar("T")

_QUORUM = "the metadata quorum"

PREFERRED, UNCLEAN = 0, 1
"""Types of election."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other replicas."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The leader's view of the metadata quorum, and {node id: [(listener, host, port)]} of its voters."""

    state: DescribeQuorumResponsePartitionData
    endpoints: Mapping[int, Sequence[tuple[str, str, int]]]


class ReplicaAdmin:
    """One of the bases of `admin.Admin`, which has what these methods use."""

    cluster: Cluster
    _retry: Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
    _ask_node: Callable[[int | None, Any, str], Awaitable[Any]]

    async def _ask_controller(self, message: Any, subject: str, doing: str) -> Any:
        """Return the controller's answer; one that refuses the whole request is tried again or raised."""

        async def attempt() -> Any:
            response = await self.cluster.request_controller(message)
            _check(response.error_code, subject, _message_of(response))
            return response

        return await self._retry(attempt, doing)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the partitions that are being moved (of all, or of these). Raises BrokerError."""
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in by_topic(partitions).items()
            ]
        message = ListPartitionReassignmentsRequest(topics=topics)
        response = await self._ask_controller(message, "partition reassignments", "listing reassignments")
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
        """Move partitions to these replicas (None = cancel); returns {partition: None or why not}."""
        message = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may_change_replication_factor,
            topics=[
                ReassignableTopic(
                    name=name,
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=_listed(targets[name, index]))
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic(targets).items()
            ],
        )
        response = await self._ask_controller(message, "partition reassignments", "reassigning partitions")
        return {
            (topic.name, part.partition_index): error_of(
                part.error_code, f"{topic.name}-{part.partition_index}", part.error_message
            )
            for topic in response.responses
            for part in topic.partitions
        }

    async def elect_leaders(
        self, election_type: int, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elect leaders (None = of every partition that needs it); returns {partition: None or why not}."""
        topics = None
        if partitions is not None:
            topics = [TopicPartitions(topic=name, partitions=items) for name, items in by_topic(partitions).items()]
        message = ElectLeadersRequest(election_type=election_type, topic_partitions=topics)
        response = await self._ask_controller(message, "leader election", "electing leaders")
        return {
            (topic.topic, part.partition_id): error_of(
                part.error_code, f"{topic.topic}-{part.partition_id}", part.error_message
            )
            for topic in response.replica_election_results
            for part in topic.partition_result
        }

    async def describe_quorum(self) -> QuorumDescription:
        """Return who leads the metadata quorum and how far the others are. Raises BrokerError."""
        return quorum_description(await self._ask_controller(quorum_request(), _QUORUM, "describing the quorum"))

    async def describe_log_dirs(self, broker_ids: Iterable[int]) -> dict[int, list[DescribeLogDirsResult]]:
        """Return the log directories of these brokers with what is in them. Raises BrokerError."""
        found: dict[int, list[DescribeLogDirsResult]] = {}
        for broker_id in broker_ids:
            response = await self._ask_node(
                broker_id, DescribeLogDirsRequest(topics=None), "describing log directories"
            )
            _check(response.error_code, f"log directories of broker {broker_id}", None)
            found[broker_id] = response.results
        return found

    async def unregister_broker(self, broker_id: int) -> None:
        """Have the cluster forget a broker that will not come back. Raises BrokerError."""
        await self._ask_controller(
            UnregisterBrokerRequest(broker_id=broker_id), f"broker {broker_id}", f"unregistering broker {broker_id}"
        )


def quorum_request() -> DescribeQuorumRequest:
    """The question about the metadata quorum."""
    partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
    return DescribeQuorumRequest(
        topics=[DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=partitions)]
    )


def quorum_description(response: DescribeQuorumResponse) -> QuorumDescription:
    """The answer to it. Raises BrokerError."""
    _check(response.error_code, _QUORUM, response.error_message)
    state = response.topics[0].partitions[0]
    _check(state.error_code, _QUORUM, state.error_message)
    endpoints = {
        node.node_id: [(item.name, item.host, item.port) for item in node.listeners] for node in response.nodes
    }
    return QuorumDescription(state, endpoints)


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _message_of(response: Any) -> str | None:
    """Why all was refused: elections tell that with each partition only."""
    if not isinstance(response, ElectLeadersResponse):
        message: str | None = getattr(response, "error_message", None)
        return message
    messages = (part.error_message for topic in response.replica_election_results for part in topic.partition_result)
    return next(messages, None)


def _check(code: int, subject: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(code, subject, message)
