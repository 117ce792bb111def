"""Tests of the changes that a MetadataDelta reports. Listeners act only on reported changes."""

from __future__ import annotations

from dataclasses import replace

from headrace_broker.metadata.delta import MetadataDelta, diff_images
from headrace_broker.metadata.image import TopicImage
from headrace_broker.protocol.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from support.images import TOPIC_ID, cluster_image, partition_image

PARTITION = partition_image("123", "123", 1)
IMAGE = cluster_image(PARTITION, PARTITION, PARTITION)


def _created(topic_id: bytes, index: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        removing_replicas=[],
        adding_replicas=[],
        directories=[bytes(16)],
    )


def test_partition_change_record_marks_only_its_partition_as_changed() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, isr=[1, 2]))
    assert delta.changed_topics == {"t": {1}}


def test_new_topic_marks_all_its_partitions_as_changed() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(TopicRecord(name="u", topic_id=b"u" * 16))
    delta.replay(_created(b"u" * 16, 0))
    delta.replay(_created(b"u" * 16, 1))
    assert delta.changed_topics == {"u": {0, 1}}


def test_removed_topic_has_no_changed_partitions() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, isr=[1, 2]))
    delta.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert delta.changed_topics == {}


def test_difference_between_two_metadata_images_contains_only_the_changed_partitions() -> None:
    changed = replace(PARTITION, isr=(1,), partition_epoch=1)
    topic = TopicImage("t", TOPIC_ID, (PARTITION, changed, PARTITION, PARTITION))
    assert diff_images(IMAGE, replace(IMAGE, topics={"t": topic})).changed_topics == {"t": {1, 3}}
    assert diff_images(IMAGE, IMAGE).changed_topics == {}


def test_diff_of_metadata_images_contains_every_partition_of_a_recreated_topic() -> None:
    recreated = TopicImage("t", b"u" * 16, IMAGE.topics["t"].partitions)
    delta = diff_images(IMAGE, replace(IMAGE, topics={"t": recreated}, topic_names={b"u" * 16: "t"}))
    assert delta.changed_topics == {"t": {0, 1, 2}}
    assert list(delta.removed_topics) == [TOPIC_ID]
