"""Writes a position that a user has set over REST into the tables of a stopped connector."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from headrace.api.connector import AlterOffsetsContext
from headrace.api.errors import ConnectError
from headrace.api.record_access import ClusterUnavailableError, OpenRecordReader, TopicDescription
from headrace_connectors.lakehouse.committers.base import BatchIdentity, Commit, TableCommitter
from headrace_connectors.lakehouse.driver.table_access import TableAccess
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig

Wanted = Mapping[TopicPartition, int | None]


def alter_table_offsets(
    config: LakehouseSinkConfig, context: AlterOffsetsContext, offsets: Mapping[Any, Mapping[str, Any] | None]
) -> str:
    """Store `offsets` in the tables of their topics, and return what the user must know about rows.

    A reset (None) sets the position at which a new connector would start. Raises ConnectError.
    """
    wanted: dict[TopicPartition, int | None] = {
        key: None if offset is None else int(offset["kafka_offset"]) for key, offset in offsets.items()
    }
    access = TableAccess(config, context.connector_name)
    access.store()
    try:
        with context.record_reader().open() as reader:
            topics = _describe_topics(reader, context, {topic for topic, _ in wanted})
            if context.is_reset:
                keys = ((name, partition) for name, topic in topics.items() for partition in topic.partitions)
                wanted = {**dict.fromkeys(keys), **wanted}
            by_table: dict[str, dict[TopicPartition, int | None]] = defaultdict(dict)
            for key, offset in wanted.items():
                by_table[config.names.name_of(key[0])][key] = offset
            moved_back: list[str] = []
            for name, table_offsets in sorted(by_table.items()):
                committer = access.open(name)
                moved_back += _alter_table(committer, table_offsets, topics, reader, context)
                committer.close()
    except ClusterUnavailableError as error:
        raise ConnectError(
            f"the tables were not changed, because the Kafka cluster is not available: {error}"
        ) from error
    if not moved_back:
        return ""
    return (
        f"The next start loads records of {', '.join(moved_back)} again, and the table then contains these rows twice,"
        " unless you delete them before"
    )


def _describe_topics(
    reader: OpenRecordReader, context: AlterOffsetsContext, names: set[str]
) -> Mapping[str, TopicDescription]:
    configured = [name.strip() for name in (context.props.get("topics") or "").split(",") if name.strip()]
    regex = context.props.get("topics.regex") or None
    found = dict(reader.describe_topics(configured, regex)) if context.is_reset else {}
    return {**found, **reader.describe_topics(names, None)}


def _alter_table(
    committer: TableCommitter,
    wanted: Wanted,
    topics: Mapping[str, TopicDescription],
    reader: OpenRecordReader,
    context: AlterOffsetsContext,
) -> list[str]:
    """Commit the offsets to one table. Return the partitions whose position went back."""
    before = committer.load(wanted)
    if not committer.exists():
        return []
    resets = [key for key, offset in wanted.items() if offset is None and _exists(key, topics)]
    starts = _start_offsets(reader, resets, context) if resets else {}
    after = {key: starts.get(key) if offset is None else offset for key, offset in wanted.items()}
    next_offsets = {**before.next_offsets, **{key: offset for key, offset in after.items() if offset is not None}}
    if next_offsets == before.next_offsets:
        return []
    ids = dict(before.topic_ids)
    for name, _ in wanted:
        description = topics.get(name)
        if description is not None and description.id is not None:
            ids[name] = description.id
    identity = BatchIdentity(context.connector_name, time.time_ns() // 1_000_000, 0)
    committer.commit(Commit(identity, TableOffsets(next_offsets, ids)))
    return [
        f"{topic}-{partition} from offset {next_offsets[topic, partition]}"
        for topic, partition in sorted(wanted)
        if (topic, partition) in before.next_offsets
        and next_offsets[topic, partition] < before.next_offsets[topic, partition]
    ]


def _exists(key: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    return key[0] in topics and key[1] in topics[key[0]].partitions


def _start_offsets(
    reader: OpenRecordReader, keys: list[TopicPartition], context: AlterOffsetsContext
) -> Mapping[TopicPartition, int]:
    """Return the offsets at which a new connector would start."""
    starts, ends = reader.log_bounds(keys)
    return ends if context.props.get("consumer.override.auto.offset.reset") == "latest" else starts
