"""Refuses a table with another connector's offsets for this connector's partitions, or takes these offsets over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition

logger = logging.getLogger(__name__)


def check_owner(
    committer: TableCommitter, offsets: TableOffsets, partitions: Sequence[TopicPartition], taken_over: str | None
) -> TableOffsets:
    """Return the connector's offsets in the table, after it has taken over those of the connector `taken_over`.

    Raises ConnectError if another connector has offsets for one of `partitions` that this connector has not taken over.
    """
    unowned = [key for key in partitions if key not in offsets.next_offsets]
    others = committer.other_connectors(unowned) if unowned else {}
    if taken_over in others:
        assert taken_over is not None
        logger.info("Table %s: taking over the offsets of connector %s", committer.location, taken_over)
        offsets = committer.take_over(taken_over, unowned)
        others = {name: found for name, found in others.items() if name != taken_over}
    for name, found in sorted(others.items()):
        clash = sorted(key for key in found.next_offsets if key in unowned and key not in offsets.next_offsets)
        if clash:
            topic, partition = clash[0]
            raise ConnectError(
                f"table {committer.location} already contains records of topic {topic}, partition {partition}, which"
                f" connector {name} loaded; to continue at the offsets of connector {name}, stop it and set"
                f" lakehouse.take.over={name}; to load the topic again, set another table name"
                " (lakehouse.table.name.format)"
            )
    return offsets
