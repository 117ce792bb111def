"""Writes a position that a user has set over REST into the tables of a stopped connector."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api.connector import AlterOffsetsContext
from headrace.api.errors import ConnectError
from headrace.api.record_access import ClusterUnavailableError, OpenRecordReader, TopicDescription
from headrace_connectors.lakehouse.committers.base import (
    BatchIdentity,
    Commit,
    TableCommitter,
    TableSchemaError,
    TableUnusableError,
)
from headrace_connectors.lakehouse.driver.table_access import TableAccess
from headrace_connectors.lakehouse.error_messages import UnsupportedTableError
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig

Offsets = Mapping[TopicPartition, int]
Topics = Mapping[str, TopicDescription]
logger = logging.getLogger(__name__)


def alter_table_offsets(
    config: LakehouseSinkConfig, context: AlterOffsetsContext, offsets: Mapping[Any, Mapping[str, Any] | None]
) -> str:
    """Store `offsets` in the connector's tables, and return what the user must know about rows.

    A reset (None) sets the position at which a new connector would start. If a transform may change topics, the task
    starts at the group's offsets, so only tables with higher offsets are changed: they would skip the records. Raises
    ConnectError.
    """
    access = TableAccess(config, context.connector_name)
    access.store()
    try:
        with context.record_reader().open() as reader:
            topics = _describe_topics(reader, context, {topic for topic, _ in offsets})
            wanted = _wanted(reader, context, topics, offsets)
    except ClusterUnavailableError as error:
        raise ConnectError(
            f"the tables were not changed, because the Kafka cluster is not available: {error}"
        ) from error
    if context.changes_topics:
        return _lower(access, wanted, topics, context.connector_name)
    by_table: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for key, offset in wanted.items():
        by_table[config.names.name_of(key[0])][key] = offset
    moved_back: list[str] = []
    for name, table_offsets in sorted(by_table.items()):
        committer = access.open(name)
        before = committer.load(table_offsets)
        if committer.exists():
            moved_back += _store(committer, before, table_offsets, topics, context.connector_name)
        committer.close()
    if not moved_back:
        return ""
    return (
        f"The next start loads records of {', '.join(moved_back)} again, and the table then contains these rows twice,"
        " unless you delete them before"
    )


# --- the wanted offsets ---------------------------------------------------------------------------------------------


def _describe_topics(reader: OpenRecordReader, context: AlterOffsetsContext, names: set[str]) -> Topics:
    configured = [name.strip() for name in (context.props.get("topics") or "").split(",") if name.strip()]
    regex = context.props.get("topics.regex") or None
    found = dict(reader.describe_topics(configured, regex)) if context.is_reset else {}
    return {**found, **reader.describe_topics(names, None)}


def _wanted(
    reader: OpenRecordReader,
    context: AlterOffsetsContext,
    topics: Topics,
    offsets: Mapping[Any, Mapping[str, Any] | None],
) -> dict[TopicPartition, int]:
    """Return the offset of each partition. A partition that is reset and does not exist has none.

    Raises ConnectError if a partition that is not reset does not exist: the group cannot store its offset.
    """
    wanted = {key: int(offset["kafka_offset"]) for key, offset in offsets.items() if offset is not None}
    resets = {key for key, offset in offsets.items() if offset is None}
    existing = {(name, partition) for name, topic in topics.items() for partition in topic.partitions}
    missing = sorted(f"{topic}-{partition}" for topic, partition in wanted.keys() - existing)
    if missing:
        raise ConnectError(f"no offset was changed, because these partitions do not exist: {', '.join(missing)}")
    _check_ends(wanted, reader)
    resets = (resets | existing if context.is_reset else resets) & existing
    return wanted | (dict(_start_offsets(reader, sorted(resets), context)) if resets else {})


def _check_ends(wanted: Offsets, reader: OpenRecordReader) -> None:
    """Raise ConnectError if an offset is beyond the end of its log, because the next start would fail."""
    _, ends = reader.log_bounds(wanted)
    for (topic, partition), offset in wanted.items():
        if offset > ends[topic, partition]:
            raise ConnectError(
                f"no offset was changed, because offset {offset} of topic {topic}, partition {partition} is beyond the"
                f" end of the log, which is {ends[topic, partition]}"
            )


def _start_offsets(reader: OpenRecordReader, keys: list[TopicPartition], context: AlterOffsetsContext) -> Offsets:
    """Return the offsets at which a new connector would start."""
    starts, ends = reader.log_bounds(keys)
    return ends if context.client_properties.get("auto.offset.reset") == "latest" else starts


# --- tables ---------------------------------------------------------------------------------------------------------


def _lower(access: TableAccess, wanted: Offsets, topics: Topics, connector: str) -> str:
    """Lower the offsets of all tables that the connector has loaded. Return what the user must know."""
    if not wanted:
        return ""
    changed: dict[str, list[str]] = {}
    known = 0
    for committer, before in _loaded_tables(access, wanted):
        known += any(key in before.next_offsets for key in wanted)
        higher = {key: offset for key, offset in wanted.items() if before.next_offsets.get(key, 0) > offset}
        if higher:
            changed[committer.location] = _store(committer, before, higher, topics, connector)
    if not known:
        return (
            f"No table that this worker finds contains records that connector {connector} has loaded from these"
            " partitions, so only the offsets of the group were changed"
        )
    if not changed:
        return ""
    partitions = sorted({text for texts in changed.values() for text in texts})
    return (
        f"The next start loads records of {', '.join(partitions)} again, and the tables {', '.join(changed)} then"
        " contain these rows twice, unless you delete them before"
    )


def _loaded_tables(access: TableAccess, wanted: Offsets) -> Iterator[tuple[TableCommitter, TableOffsets]]:
    """Yield the tables at the connector's location, with the connector's offsets.

    Tables that the sink does not support cannot be the connector's.
    """
    for name in access.find_names():
        committer = access.open(name)
        try:
            offsets = committer.load(wanted)
            if committer.exists():
                yield committer, offsets
        except (TableSchemaError, TableUnusableError, UnsupportedTableError) as error:
            logger.info("The offsets of a table are not changed: %s", error)
        finally:
            committer.close()


def _store(
    committer: TableCommitter, before: TableOffsets, wanted: Offsets, topics: Topics, connector: str
) -> list[str]:
    """Commit the offsets to one table. Return the partitions whose position went back."""
    next_offsets = {**before.next_offsets, **wanted}
    if next_offsets == before.next_offsets:
        return []
    ids = dict(before.topic_ids)
    for name, _ in wanted:
        description = topics.get(name)
        if description is not None and description.id is not None:
            ids[name] = description.id
    identity = BatchIdentity(connector, time.time_ns() // 1_000_000, 0)
    committer.commit(Commit(identity, TableOffsets(next_offsets, ids)))
    return [
        f"{topic}-{partition} from offset {offset}"
        for (topic, partition), offset in sorted(wanted.items())
        if offset < before.next_offsets.get((topic, partition), 0)
    ]
