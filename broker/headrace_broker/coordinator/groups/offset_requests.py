"""Handles the OffsetCommit, OffsetDelete and OffsetFetch requests of classic groups.

A member may commit offsets with the group's current generation, even in PreparingRebalance, but not
in CompletingRebalance. A request without a generation may commit offsets while the group is empty:
consumers with manual assignment and admin clients send such requests.
"""

from __future__ import annotations

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.offsets import OffsetStore, PartitionOffsets
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import CommittedOffset, offset_record, offset_tombstone
from headrace_broker.coordinator.runtime import CoordinatorResult, Token
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace_broker.protocol.messages.offset_delete import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

_GROUP_NOT_FOUND_ERROR_VERSION = 9


class OffsetRequests:
    """Handles the offset requests of one shard's groups."""

    def __init__(
        self, config: GroupConfig, groups: dict[str, ClassicGroup], offsets: OffsetStore, rebalancer: Rebalancer
    ) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._rebalancer = rebalancer

    # -- OffsetCommit

    def commit(self, request: OffsetCommitRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        out = CoordinatorResult()
        try:
            self._check_committer(request, version, now_ms)
        except ApiError as error:
            out.respond(token, commit_response(request, error.code))
            return out
        expire_ms = now_ms + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        topics = []
        for topic in request.topics:
            partitions = []
            for requested in topic.partitions:
                error_code = self._commit_one(request.group_id, topic.name, requested, now_ms, expire_ms, out)
                partitions.append(
                    OffsetCommitResponsePartition(partition_index=requested.partition_index, error_code=error_code)
                )
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        out.respond(token, OffsetCommitResponse(topics=topics))
        return out

    def _commit_one(
        self,
        group_id: str,
        topic: str,
        requested: OffsetCommitRequestPartition,
        now_ms: int,
        expire_ms: int,
        out: CoordinatorResult,
    ) -> ErrorCode:
        metadata = requested.committed_metadata or ""
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(
            requested.committed_offset, requested.committed_leader_epoch, metadata, now_ms, expire_ms
        )
        out.records.append(offset_record(group_id, topic, requested.partition_index, committed))
        return ErrorCode.NONE

    def _check_committer(self, request: OffsetCommitRequest, version: int, now_ms: int) -> None:
        generation_id = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None:
            if generation_id < 0:
                return
            is_known_error = version >= _GROUP_NOT_FOUND_ERROR_VERSION
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_known_error else ErrorCode.ILLEGAL_GENERATION)
        if generation_id < 0 and group.is_empty:
            return
        member = group.get_member(request.member_id, request.group_instance_id)
        if generation_id != group.generation_id:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalancer.refresh_session(group, member, now_ms)

    # -- OffsetDelete

    def delete(self, request: OffsetDeleteRequest, token: Token) -> CoordinatorResult:
        out = CoordinatorResult()
        group = self._groups.get(request.group_id)
        if group is None:
            out.respond(token, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        elif not group.is_empty and not group.uses_consumer_protocol:
            out.respond(token, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
        else:
            topics = [
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=self._delete_one(group, topic.name, partition.partition_index, out),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
            out.respond(token, OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics))
        return out

    def _delete_one(self, group: ClassicGroup, topic: str, partition: int, out: CoordinatorResult) -> ErrorCode:
        if group.is_subscribed_to(topic):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        if self._offsets.get(group.group_id, topic, partition) is not None:
            out.records.append(offset_tombstone(group.group_id, topic, partition))
        return ErrorCode.NONE

    # -- OffsetFetch

    def fetch(self, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        """Build the OffsetFetch response for one group, with all topics if `group.topics` is None.

        The response contains -1 for a requested partition without a committed offset.
        """
        stored = self._offsets.group_offsets(group.group_id)
        if group.topics is None:
            topics = [
                OffsetFetchResponseTopics(
                    name=name, partitions=[_fetched(index, committed) for index, committed in partitions.items()]
                )
                for name, partitions in stored.items()
            ]
        else:
            topics = [_fetched_topic(topic, stored.get(topic.name, {})) for topic in group.topics]
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _fetched_topic(topic: OffsetFetchRequestTopics, stored: PartitionOffsets) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[_fetched(index, stored.get(index, _NO_COMMITTED_OFFSET)) for index in topic.partition_indexes],
    )


_NO_COMMITTED_OFFSET = CommittedOffset(-1)


def _fetched(partition: int, committed: CommittedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=ErrorCode.NONE,
    )


def commit_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """Build a response with the same error for every partition of the request."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
