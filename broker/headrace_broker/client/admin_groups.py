"""The admin client's methods that list, describe and delete groups, and manage their committed offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace_broker.client import offsets
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.consumer_protocol import decode_assignment
from headrace_broker.client.errors import BrokerError, ProtocolViolationError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace_broker.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.protocol.topic_names import TopicPartition

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Response)

_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_RETRIED_FOR_PARTITIONS = (
    *_COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
"""The errors of a partition after which a request is sent again, as in Java's AlterConsumerGroupOffsetsHandler."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a ListGroups response. State and type are empty if the broker is too old to return these fields."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a described group.

    `assignment` is None if its bytes cannot be decoded or if the member is not a consumer.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group in a DescribeGroups response."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    coordinator_id: int


class GroupAdmin:
    """The admin client's methods for groups. `admin.Admin` inherits from this class."""

    def __init__(self, cluster: Cluster, timeout_ms: float) -> None:
        self.cluster = cluster
        self._timeout_ms = timeout_ms

    async def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by id. Raises BrokerError, TimedOutError.

        `states` and `types` are the filters of the ListGroups requests. An empty filter matches every group.
        """

        async def attempt() -> dict[str, GroupListing]:
            found: dict[str, GroupListing] = {}
            for node_id in list(self.cluster.view.nodes):  # read again on every attempt: brokers may be removed
                connection = await self.cluster.connection(node_id)
                version = connection.version_for(ListGroupsRequest)
                response = await connection.request(
                    ListGroupsRequest(
                        states_filter=list(states) if version >= 4 else [],
                        types_filter=list(types) if version >= 5 else [],
                    )
                )
                if response.error_code != ErrorCode.NONE:
                    raise BrokerError(response.error_code, f"cannot list the groups on broker {node_id}")
                for group in response.groups:
                    found[group.group_id] = GroupListing(
                        group.group_id, group.protocol_type, group.group_state, group.group_type
                    )
            return found

        found = await self._retry(attempt, "listing groups")
        return [found[group_id] for group_id in sorted(found)]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | BrokerError]:
        """Return the state and members of these groups. A group that does not exist has the state Dead."""
        described: dict[str, GroupDescription | BrokerError] = {}
        for group_id in group_ids:

            async def attempt(group_id: str = group_id) -> GroupDescription | BrokerError:
                message = DescribeGroupsRequest(groups=[group_id])
                response = await self.cluster.request_coordinator(group_id, message)
                group = response.groups[0]
                if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:  # from version 6 on (KIP-1043)
                    group.group_state = "Dead"
                elif group.error_code != ErrorCode.NONE:
                    return self._group_error(group_id, group.error_code, group.error_message)
                return _describe_group(group, await self.cluster.coordinator(group_id))

            described[group_id] = await self._retry(attempt, f"describing group {group_id}")
        return described

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, BrokerError | None]:
        """Delete groups without members; return {group: None or the error}."""
        done: dict[str, BrokerError | None] = {}
        for group_id in group_ids:

            async def attempt(group_id: str = group_id) -> BrokerError | None:
                message = DeleteGroupsRequest(groups_names=[group_id])
                result = (await self.cluster.request_coordinator(group_id, message)).results[0]
                if result.error_code == ErrorCode.NONE:
                    return None
                return self._group_error(group_id, result.error_code, result.error_message)

            done[group_id] = await self._retry(attempt, f"deleting group {group_id}")
        return done

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return a group's committed offsets for these partitions (None = all partitions). Raises BrokerError."""
        return await offsets.fetch_offsets(self.cluster, group_id, partitions, timeout_ms=self._timeout_ms)

    async def alter_group_offsets(
        self, group_id: str, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Set the committed offsets of a group without members; return {partition: None or the error}."""

        async def attempt() -> dict[TopicPartition, BrokerError | None]:
            codes = await offsets.commit_offsets(self.cluster, group_id, committed)
            return {item: self._partition_error(group_id, item, code) for item, code in codes.items()}

        return await self._retry(attempt, f"altering the offsets of group {group_id}")

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, BrokerError | None]:
        """Delete a group's committed offsets; return {partition: None or the error}.

        The coordinator rejects a partition if a member of the group is subscribed to its topic.
        """
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic)).partitions.append(
                OffsetDeleteRequestPartition(partition_index=partition)
            )
        message = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))

        async def attempt() -> dict[TopicPartition, BrokerError | None]:
            response = await self.cluster.request_coordinator(group_id, message)
            if response.error_code != ErrorCode.NONE:
                raise self._group_error(group_id, response.error_code, None)
            return {
                (topic.name, part.partition_index): self._partition_error(
                    group_id, (topic.name, part.partition_index), ErrorCode.from_code(part.error_code)
                )
                for topic in response.topics
                for part in topic.partitions
            }

        return await self._retry(attempt, f"deleting offsets of group {group_id}")

    def _partition_error(self, group_id: str, item: TopicPartition, code: ErrorCode) -> BrokerError | None:
        """Convert the error code of the partition `item` to a BrokerError, or to None if there is no error.

        Raise the error if the request must be sent again, otherwise return the error.
        """
        if code == ErrorCode.NONE:
            return None
        error = BrokerError(code, f"group {group_id}, {item[0]}-{item[1]}")
        self._forget_moved_coordinator(group_id, error)
        if error.code in _RETRIED_FOR_PARTITIONS:
            error.retriable = True  # REBALANCE_IN_PROGRESS is not retriable for members of the group
            raise error
        return error

    def _group_error(self, group_id: str, code: int, message: str | None) -> BrokerError:
        """Convert an error code of the group to a BrokerError.

        Return a permanent error, but raise a retriable error.
        """
        error = BrokerError(code, f"group {group_id}", message)
        self._forget_moved_coordinator(group_id, error)
        if error.retriable:
            raise error
        return error

    def _forget_moved_coordinator(self, group_id: str, error: BrokerError) -> None:
        if error.code in _COORDINATOR_MOVED:
            self.cluster.forget_coordinator(group_id)

    async def _retry(self, attempt: Callable[[], Awaitable[T]], action: str) -> T:
        return await self.cluster.retry(attempt, self._timeout_ms, action)

    async def _request_node(self, node_id: int | None, message: Request[ResponseT], action: str) -> ResponseT:
        """Send a request to the broker `node_id`, or to any broker if `node_id` is None.

        `action` names the operation in error texts.
        """

        async def attempt() -> ResponseT:
            if node_id is None:
                return await self.cluster.request_any(message)
            if node_id not in self.cluster.view.nodes and node_id not in (await self.cluster.wait_for_refresh()).nodes:
                raise BrokerError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"broker {node_id}",
                    f"the cluster has no broker with node.id={node_id}",
                )
            return await self.cluster.request(node_id, message)

        return await self._retry(attempt, action)


def _describe_group(group: DescribedGroup, coordinator_id: int) -> GroupDescription:
    is_consumer = group.protocol_type == "consumer"
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(_describe_member(member, is_consumer) for member in group.members),
        coordinator_id,
    )


def _describe_member(member: DescribedGroupMember, is_consumer: bool) -> GroupMember:
    assignment: tuple[TopicPartition, ...] | None = None
    if is_consumer:
        try:
            assignment = tuple(decode_assignment(member.member_assignment))
        except ProtocolViolationError:  # the member sent an invalid assignment: return it as unknown, do not fail
            assignment = None
    return GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment)
