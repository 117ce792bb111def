"""What a delta says of its own changes: those who follow the image look at nothing else."""

from __future__ import annotations

from dataclasses import replace

from headrace_broker.metadata.delta import MetadataDelta, difference
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


def test_a_change_names_its_partition_and_no_other() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, isr=[1, 2]))
    assert delta.changed_topics == {"t": {1}}


def test_a_new_topic_names_all_its_partitions() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(TopicRecord(name="u", topic_id=b"u" * 16))
    delta.replay(_created(b"u" * 16, 0))
    delta.replay(_created(b"u" * 16, 1))
    assert delta.changed_topics == {"u": {0, 1}}


def test_a_removed_topic_has_no_changes_left() -> None:
    delta = MetadataDelta(IMAGE)
    delta.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, isr=[1, 2]))
    delta.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert delta.changed_topics == {}


def test_the_difference_of_two_images_names_what_differs() -> None:
    changed = replace(PARTITION, isr=(1,), partition_epoch=1)
    topic = TopicImage("t", TOPIC_ID, (PARTITION, changed, PARTITION, PARTITION))
    assert difference(IMAGE, replace(IMAGE, topics={"t": topic})).changed_topics == {"t": {1, 3}}
    assert difference(IMAGE, IMAGE).changed_topics == {}


def test_a_topic_made_anew_under_its_name_differs_in_every_partition() -> None:
    again = TopicImage("t", b"u" * 16, IMAGE.topics["t"].partitions)
    told = difference(IMAGE, replace(IMAGE, topics={"t": again}, topic_names={b"u" * 16: "t"}))
    assert told.changed_topics == {"t": {0, 1, 2}}
    assert list(told.removed_topics) == [TOPIC_ID]
