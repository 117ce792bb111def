"""Sends ListOffsets, OffsetCommit and OffsetFetch requests, for the offsets of logs and of consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import BrokerError
from headrace_broker.client.membership_core import Generation
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from headrace_broker.protocol.topic_names import TopicPartition, group_by_topic

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

OFFSET_COMMIT_VERSION_MAX = 9
OFFSET_FETCH_VERSION_MAX = 9
"""The last versions with topic names; from version 10 on, OffsetCommit and OffsetFetch use topic ids."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset (the next record to read), and the leader epoch of the record before it (-1 = unknown)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """A partition's offset from a ListOffsets response. The offset is -1 if no record is at or after the timestamp."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """Return, for each partition, the offset of the first record at or after the timestamp (ms).

    A timestamp can also be LATEST, EARLIEST or MAX_TIMESTAMP. Raises TimedOutError, or a BrokerError that names the
    partition.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    for topic in {topic for topic, _ in timestamps}:
        await cluster.topic(topic, timeout_ms)

    async def attempt() -> dict[TopicPartition, ListedOffset]:
        try:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for topic_partition in timestamps.keys() - found.keys():
                leader = cluster.view.leader(*topic_partition)
                if leader is None:
                    raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "the leader of {}-{}".format(*topic_partition))
                by_leader.setdefault(leader.leader_id, {})[topic_partition] = timestamps[topic_partition]
            results = await asyncio.gather(
                *(
                    _request_leader(cluster, leader_id, requested, read_committed)
                    for leader_id, requested in by_leader.items()
                ),
                return_exceptions=True,
            )
        except BrokerError:
            cluster.request_refresh()
            raise
        errors = [result for result in results if isinstance(result, BaseException)]
        for result in results:
            if isinstance(result, dict):
                found.update(result)
        if errors:
            cluster.request_refresh()
            raise errors[0]
        return found

    timeout = timeout_ms if timeout_ms is not None else cluster.config.default_api_timeout_ms
    return await cluster.retry(attempt, timeout, "listing offsets")


async def _request_leader(
    cluster: Cluster, leader_id: int, requested: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, ListedOffset]:
    topics: dict[str, ListOffsetsTopic] = {}
    for (topic, partition), timestamp in requested.items():
        item = topics.setdefault(topic, ListOffsetsTopic(name=topic))
        item.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    response = await cluster.request(
        leader_id,
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=list(topics.values()),
            timeout_ms=cluster.config.request_timeout_ms,
        ),
    )
    found = {}
    for topic_response in response.topics:
        name = topic_response.name
        for part in topic_response.partitions:
            if part.error_code != ErrorCode.NONE:
                raise BrokerError(part.error_code, f"cannot look up an offset of {name}-{part.partition_index}")
            found[name, part.partition_index] = ListedOffset(part.offset, part.timestamp, part.leader_epoch)
    return found


async def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation: Generation | None = None,
    group_instance_id: str | None = None,
) -> dict[TopicPartition, ErrorCode]:
    """Commit offsets with one request, without retries; return each partition's error code.

    If `generation` is None, commit as a client that is not a member of the group.
    """
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, OffsetCommitRequestTopic(name=topic)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    member = generation or Generation()
    message = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=group_instance_id if generation is not None else None,
        topics=list(topics.values()),
    )
    connection = await cluster.coordinator_connection(group_id)
    version = connection.version_for(OffsetCommitRequest, at_most=OFFSET_COMMIT_VERSION_MAX)
    response = await connection.request(message, version=version)
    return {
        (topic.name, part.partition_index): ErrorCode.from_code(part.error_code)
        for topic in response.topics
        for part in topic.partitions
    }


async def fetch_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition] | None, *, timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return a group's committed offset for each partition, or None for a partition without a committed offset.

    If `partitions` is None, return all committed offsets. Raises BrokerError, TimedOutError.
    """
    requested = group_by_topic(partitions) if partitions is not None else None

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
        try:
            return await _fetch_once(cluster, group_id, requested)
        except BrokerError as error:
            if error.code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                cluster.forget_coordinator(group_id)
            raise

    timeout = timeout_ms if timeout_ms is not None else cluster.config.default_api_timeout_ms
    return await cluster.retry(attempt, timeout, f"committed offsets of group {group_id}")


async def _fetch_once(
    cluster: Cluster, group_id: str, requested: Mapping[str, list[int]] | None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    connection = await cluster.coordinator_connection(group_id)
    version = connection.version_for(OffsetFetchRequest, at_most=OFFSET_FETCH_VERSION_MAX)
    if version >= 8:
        topics = (
            None
            if requested is None
            else [OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in requested.items()]
        )
        message = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=True
        )
    else:
        old_topics = (
            None
            if requested is None
            else [OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in requested.items()]
        )
        message = OffsetFetchRequest(group_id=group_id, topics=old_topics, require_stable=version >= 7)
    return _parse_committed_offsets(await connection.request(message, version=version), group_id)


def _parse_committed_offsets(
    response: OffsetFetchResponse, group_id: str
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    group = response.groups[0] if response.groups else response
    if group.error_code != ErrorCode.NONE:
        raise BrokerError(group.error_code, f"cannot fetch the committed offsets of group {group_id}")
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for topic in group.topics:
        for part in topic.partitions:
            if part.error_code != ErrorCode.NONE:
                raise BrokerError(
                    part.error_code,
                    f"cannot fetch the committed offset of group {group_id} for {topic.name}-{part.partition_index}",
                )
            found[topic.name, part.partition_index] = (
                OffsetAndMetadata(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
                if part.committed_offset >= 0
                else None
            )
    return found
