"""ListOffsets: what a leader says of its log's ends."""

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


def answer(
    high_watermark: int, timestamp: int = -1, *, found: int | None = None, replica_id: int = -1, version: int = 5
) -> tuple[int, int]:
    """(error, offset) that a leader answers which took over with `END` records."""
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
    context: Any = SimpleNamespace(partitions=SimpleNamespace(require_led=lambda topic, index: partition))
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    answered = list_offsets.handle(context, ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
    (part,) = answered.topics[0].partitions
    return part.error_code, part.offset


@pytest.mark.parametrize("high_watermark", [0, END - 1])
def test_a_new_leader_tells_no_consumer_of_an_end_that_others_have_told_to_be_later(high_watermark: int) -> None:
    """R3: its high watermark lags what the leader before it has shown, until a follower has fetched."""
    assert answer(high_watermark)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert answer(high_watermark, version=4)[0] == ErrorCode.LEADER_NOT_AVAILABLE
    assert answer(high_watermark, replica_id=2) == (ErrorCode.NONE, END + 2)


def test_nor_that_there_is_no_record_of_a_time_when_others_have_shown_one() -> None:
    """R3, for a search by time."""
    assert answer(6, 1_000, found=6)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert answer(6, 1_000, found=5) == (ErrorCode.NONE, 5)
    assert answer(6, 1_000, found=None) == (ErrorCode.NONE, -1)
    assert answer(END, 1_000, found=END) == (ErrorCode.NONE, -1)


@pytest.mark.parametrize("high_watermark", [END, END + 1])
def test_the_end_for_consumers_is_the_high_watermark(high_watermark: int) -> None:
    assert answer(high_watermark) == (ErrorCode.NONE, high_watermark)
