"""OffsetCommit, OffsetDelete and OffsetFetch of classic groups. Pure.

Who may commit: a member in its own generation (while a rebalance is being prepared, too, but not between the new
generation and its assignments); and anybody without a generation as long as the group is empty, which is how
consumers with their own assignment and operators commit.
"""

from __future__ import annotations

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.offsets import OffsetStore, PartitionOffsets
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import CommittedOffset, offset_record, offset_tombstone
from headrace_broker.coordinator.runtime import Outcome, Token
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
    """The offset requests of one shard's groups."""

    def __init__(
        self, config: GroupConfig, groups: dict[str, ClassicGroup], offsets: OffsetStore, rebalancer: Rebalancer
    ) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._rebalancer = rebalancer

    # -- OffsetCommit

    def commit(self, request: OffsetCommitRequest, version: int, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        try:
            self._check_committer(request, version, now_ms)
        except ApiError as error:
            out.reply(token, commit_response(request, error.code))
            return out
        expire_ms = now_ms + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                error_code = self._commit_one(request.group_id, topic.name, asked, now_ms, expire_ms, out)
                partitions.append(
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error_code)
                )
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        out.reply(token, OffsetCommitResponse(topics=topics))
        return out

    def _commit_one(
        self,
        group_id: str,
        topic: str,
        asked: OffsetCommitRequestPartition,
        now_ms: int,
        expire_ms: int,
        out: Outcome,
    ) -> ErrorCode:
        metadata = asked.committed_metadata or ""
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(asked.committed_offset, asked.committed_leader_epoch, metadata, now_ms, expire_ms)
        out.records.append(offset_record(group_id, topic, asked.partition_index, committed))
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
        member = group.member(request.member_id, request.group_instance_id)
        if generation_id != group.generation_id:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalancer.refresh_session(group, member, now_ms)

    # -- OffsetDelete

    def delete(self, request: OffsetDeleteRequest, token: Token) -> Outcome:
        out = Outcome()
        group = self._groups.get(request.group_id)
        if group is None:
            out.reply(token, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        elif not group.is_empty and not group.uses_consumer_protocol:
            out.reply(token, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
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
            out.reply(token, OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics))
        return out

    def _delete_one(self, group: ClassicGroup, topic: str, partition: int, out: Outcome) -> ErrorCode:
        if group.is_subscribed_to(topic):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        if self._offsets.get(group.group_id, topic, partition) is not None:
            out.records.append(offset_tombstone(group.group_id, topic, partition))
        return ErrorCode.NONE

    # -- OffsetFetch

    def fetch(self, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        """What the group has committed, for the partitions asked for (-1 where it has nothing) or for all."""
        stored = self._offsets.topics_of(group.group_id)
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
        partitions=[_fetched(index, stored.get(index, _NOTHING)) for index in topic.partition_indexes],
    )


_NOTHING = CommittedOffset(-1)


def _fetched(partition: int, committed: CommittedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=ErrorCode.NONE,
    )


def commit_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """One error for every partition of the request."""
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
