"""Tests of PartitionTable, the broker's partitions: applying images, opening logs, and removing partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.image import PartitionImage, TopicImage
from headrace_broker.server.replicas.partitions import Partition, PartitionTable
from support.images import TOPIC_ID, partition_image


class _Table(PartitionTable):
    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.changes: list[tuple[int, bool]] = []
        super().__init__(1, self.open_log, self.on_change)

    def open_log(self, topic: TopicImage, index: int) -> PartitionLog:
        return PartitionLog.open(self.storage, f"data/{topic.name}-{index}", topic.name, index, LogConfig(), 0)

    def on_change(self, partition: Partition, image: PartitionImage, is_new_epoch: bool) -> None:
        self.changes.append((partition.index, is_new_epoch))


MINE = partition_image("12", "12", 1)
OTHERS = partition_image("23", "23", 2)


@pytest.fixture
def table() -> _Table:
    return _Table()


def _topic(*partitions: PartitionImage) -> TopicImage:
    return TopicImage("t", TOPIC_ID, partitions)


def test_update_of_the_partition_table_returns_the_partitions_of_this_broker_whose_logs_are_not_open(
    table: _Table,
) -> None:
    topic = _topic(MINE, OTHERS, MINE)
    assert table.update(topic, range(3)) == [0, 2]
    table.open(topic, 2)
    assert table.update(topic, range(3)) == [0]
    assert table.changes == [(2, True), (2, False)]
    partition = table.require_leader("t", 2)
    assert partition is table.by_id[TOPIC_ID][2]


def test_update_of_the_partition_table_applies_only_the_images_of_the_given_partitions(table: _Table) -> None:
    topic = _topic(MINE, MINE)
    for index in table.update(topic, range(2)):
        table.open(topic, index)
    table.changes.clear()
    led_by_other = replace(MINE, leader=2, leader_epoch=1)
    assert table.update(_topic(led_by_other, led_by_other), [1]) == []
    assert table.changes == [(1, True)]
    assert [partition.leader for partition in table] == [1, 2]


def test_partition_that_is_reassigned_to_other_brokers_is_removed_from_the_partition_table(table: _Table) -> None:
    topic = _topic(MINE, MINE)
    for index in table.update(topic, range(2)):
        table.open(topic, index)
    moved = _topic(OTHERS, OTHERS)
    assert [partition.index for partition in table.remove_reassigned(moved, [1])] == [1]
    assert [partition.index for partition in table] == [0]
    assert table.partitions_per_request_max < 1000 + 2 * 2
