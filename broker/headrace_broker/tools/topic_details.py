"""Sends the requests of kafka-topics --describe, for partitions and their ELR, for configs and for reassignments."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.client.admin import TOPIC, Admin, values_or_raise
from headrace_broker.client.admin_replicas import Reassignment
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_configs import DescribeConfigsResourceResult
from headrace_broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from headrace_broker.protocol.uuid_text import encode_uuid
from headrace_broker.tools.topic_descriptions import PartitionDescription, TopicDescription

_DEFAULT_CONFIG = 5
_Partitions = dict[str, tuple[bytes, list[PartitionDescription]]]


async def topic_descriptions(admin: Admin, names: Sequence[str], *, partition_limit: int) -> list[TopicDescription]:
    """Return the descriptions of these topics, sorted by name. Raises ClientError.

    `partition_limit` limits the number of partitions in each DescribeTopicPartitions response.
    """
    moves = await _reassignments(admin, names)
    if ApiKey.DESCRIBE_TOPIC_PARTITIONS in (await admin.cluster.any_connection()).versions:
        partitions = await _describe_with_elr(admin, sorted(names), moves, partition_limit)
    else:
        partitions = await _describe_from_metadata(admin, names, moves)
    configs = await admin.describe_configs([(TOPIC, name) for name in names])
    described = []
    for name in sorted(partitions):
        topic_id, parts = partitions[name]
        entries = configs[TOPIC, name]
        if isinstance(entries, BrokerError):
            raise entries
        described.append(_description(name, topic_id, parts, entries))
    return described


def _description(
    name: str,
    topic_id: bytes,
    partitions: list[PartitionDescription],
    entries: list[DescribeConfigsResourceResult],
) -> TopicDescription:
    values = {entry.name: entry.value for entry in entries}
    overrides = {entry.name: entry.value for entry in entries if entry.config_source != _DEFAULT_CONFIG}
    least = int(values.get("min.insync.replicas") or 1)
    return TopicDescription(
        name, encode_uuid(topic_id), sorted(partitions, key=lambda item: item.partition), overrides, least
    )


async def _describe_with_elr(
    admin: Admin, names: list[str], moves: dict[tuple[str, int], Reassignment], partition_limit: int
) -> _Partitions:
    found: _Partitions = {}
    cursor: Cursor | None = None
    while True:
        remaining = [name for name in names if cursor is None or name >= cursor.topic_name]
        message = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in remaining],
            response_partition_limit=partition_limit,
            cursor=cursor,
        )
        response = await admin.cluster.request_any(message)
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code != ErrorCode.NONE:
                raise BrokerError(topic.error_code, f"topic {name}")
            parts = found.setdefault(name, (topic.topic_id, []))[1]
            parts += [_partition(item, moves.get((name, item.partition_index))) for item in topic.partitions]
        if response.next_cursor is None:
            return found
        cursor = response.next_cursor


def _partition(item: DescribeTopicPartitionsResponsePartition, move: Reassignment | None) -> PartitionDescription:
    return PartitionDescription(
        item.partition_index,
        item.leader_id if item.leader_id >= 0 else None,
        item.replica_nodes,
        item.isr_nodes,
        item.eligible_leader_replicas or [],
        item.last_known_elr or [],
        move,
    )


async def _describe_from_metadata(
    admin: Admin, names: Sequence[str], moves: dict[tuple[str, int], Reassignment]
) -> _Partitions:
    return {
        name: (
            topic.topic_id,
            [
                PartitionDescription(
                    view.partition,
                    view.leader_id if view.leader_id >= 0 else None,
                    view.replicas,
                    view.in_sync_replicas,
                    reassignment=moves.get((name, view.partition)),
                )
                for view in topic.partitions
            ],
        )
        for name, topic in values_or_raise(await admin.describe_topics(names)).items()
    }


async def _reassignments(admin: Admin, names: Sequence[str]) -> dict[tuple[str, int], Reassignment]:
    """Return the ongoing reassignments of the topics `names`, by (topic, partition).

    Return {} if the broker does not support the request, or does not authorize it.
    """
    connection = await admin.cluster.any_connection()
    if ApiKey.LIST_PARTITION_REASSIGNMENTS not in connection.versions:
        return {}
    views = values_or_raise(await admin.describe_topics(names))
    try:
        return await admin.list_reassignments(
            (name, part.partition) for name in views for part in views[name].partitions
        )
    except BrokerError as error:
        if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return {}
        raise
