"""Tests of ListOffsets on a partition leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace_broker.replication.leader import LeaderReplicas
from headrace_broker.server.handlers import list_offsets

END, LEADER_EPOCH = 10, 5


def list_offset(
    high_watermark: int, timestamp: int = -1, *, found: int | None = None, replica_id: int = -1, version: int = 5
) -> tuple[int, int]:
    """Return the error code and the offset of the leader's response to a ListOffsets request.

    The log finds offset `found` for `timestamp`. The log end offset was `END` when the leader was elected.
    """
    image = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=LEADER_EPOCH)
    partition = SimpleNamespace(
        log=SimpleNamespace(
            high_watermark=high_watermark,
            log_end_offset=END + 2,
            offset_for_timestamp=lambda timestamp: None if found is None else (timestamp, found, 0),
        ),
        replicas=LeaderReplicas(1, image, log_end_offset=END, min_insync_replicas=2, lag_time_max_ms=30_000, now_ms=0),
        leader_epoch=LEADER_EPOCH,
        check_leader_epoch=lambda epoch: None,
    )
    context: Any = SimpleNamespace(partitions=SimpleNamespace(require_leader=lambda topic, index: partition))
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    response = list_offsets.handle(context, ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
    (partition_response,) = response.topics[0].partitions
    return partition_response.error_code, partition_response.offset


@pytest.mark.parametrize("high_watermark", [0, END - 1])
def test_list_offsets_returns_error_offset_not_available_until_the_new_leaders_high_watermark_catches_up(
    high_watermark: int,
) -> None:
    """Test rule R3 in docs/broker.md.

    Until a follower fetches, a new leader's high watermark may be lower than the previous leader's high watermark was.
    """
    assert list_offset(high_watermark)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offset(high_watermark, version=4)[0] == ErrorCode.LEADER_NOT_AVAILABLE
    assert list_offset(high_watermark, replica_id=2) == (ErrorCode.NONE, END + 2)


def test_list_offsets_by_timestamp_returns_error_offset_not_available_if_the_record_may_be_uncommitted() -> None:
    """Test rule R3 in docs/broker.md.

    Until its high watermark catches up, a new leader cannot know whether the record is committed.
    """
    assert list_offset(6, 1_000, found=6)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offset(6, 1_000, found=5) == (ErrorCode.NONE, 5)
    assert list_offset(6, 1_000, found=None) == (ErrorCode.NONE, -1)
    assert list_offset(END, 1_000, found=END) == (ErrorCode.NONE, -1)


@pytest.mark.parametrize("high_watermark", [END, END + 1])
def test_latest_offset_for_consumers_is_high_watermark(high_watermark: int) -> None:
    assert list_offset(high_watermark) == (ErrorCode.NONE, high_watermark)
