"""The replay law: the image reached by deciding equals the one rebuilt from the records that were written."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.metadata.cluster import bootstrap_records, register_broker, unfence_broker
from headrace_broker.metadata.configs import alter_configs
from headrace_broker.metadata.controller import Controller
from headrace_broker.metadata.delta import MetadataDelta, replayed
from headrace_broker.metadata.image import TOPIC_RESOURCE, Endpoint, MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.metadata.topics import TopicDefaults, create_partitions, create_topics, delete_topics
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace_broker.protocol.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
    decode_metadata_record,
    encode_metadata_record,
)

names = st.sampled_from(["a", "b", "c.d", "c_d", "bad name", "__consumer_offsets"])
configs = st.dictionaries(
    st.sampled_from(["retention.ms", "cleanup.policy", "nonsense"]), st.sampled_from(["100", "compact", "delete"])
)
steps = st.one_of(
    st.tuples(st.just("create"), names, st.integers(-2, 4), configs),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("grow"), names, st.integers(0, 6)),
    st.tuples(st.just("alter"), names, st.sampled_from(["retention.ms", "cleanup.policy"]), st.integers(0, 3)),
    st.tuples(st.just("ids")),
    st.tuples(st.just("register"), st.integers(1, 2)),
    st.tuples(st.just("move"), names, st.integers(0, 2)),
)


def decision(step: tuple[object, ...], image: MetadataImage, next_offset: int, new_id: object) -> Outcome[object]:
    kind = step[0]
    if kind == "create":
        topic = CreatableTopic(
            name=step[1],
            num_partitions=step[2],
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in step[3].items()],
        )
        request = CreateTopicsRequest(topics=[topic])
        return create_topics(image, request, defaults=TopicDefaults(2, 1), broker_properties={}, new_id=new_id)
    if kind == "delete":
        return delete_topics(image, [(step[1], bytes(16))])
    if kind == "grow":
        wanted = CreatePartitionsTopic(name=step[1], count=step[2], assignments=None)
        return create_partitions(image, CreatePartitionsRequest(topics=[wanted]))
    if kind == "alter":
        value = "100" if step[2] == "retention.ms" else "compact"
        return alter_configs(image, [(TOPIC_RESOURCE, step[1], [(step[2], step[3], value)])])
    if kind == "ids":
        return allocate_producer_ids(image, 1)
    if kind == "register":
        return register_broker(
            image,
            step[1],
            next_offset=next_offset,
            incarnation_id=new_id(),
            endpoints=[Endpoint("PLAINTEXT", "localhost", 9092)],
            rack=None,
            log_dirs=[bytes(15) + b"\1"],
        )
    topic = image.topics.get(step[1])
    if topic is None or step[2] >= len(topic.partitions):
        return Outcome(None)
    return Outcome(
        None, [PartitionChangeRecord(partition_id=step[2], topic_id=topic.topic_id, leader=1, isr=[1], replicas=[1])]
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, max_size=30))
def test_an_image_rebuilt_by_replay_equals_the_live_one(plan: list[tuple[object, ...]]) -> None:
    ids = count(1)
    controller = Controller(MetadataImage(), epoch=1)
    written: list[bytes] = []

    def submit(decide: object) -> None:
        outcome = controller.decide(decide, len(written))
        written.extend(encode_metadata_record(record) for record in outcome.records)

    submit(lambda image: Outcome(None, bootstrap_records()))
    plan = [("register", 1), *plan]
    for step in plan:
        offset = len(written)
        submit(lambda image, step=step, offset=offset: decision(step, image, offset, lambda: next(ids).to_bytes(16)))
        if step[0] == "register":
            submit(lambda image, step=step: unfence_broker(image.brokers[step[1]]))

    records: list[MetadataRecord] = [decode_metadata_record(value) for value in written]
    all_at_once = MetadataDelta(MetadataImage())
    one_by_one = MetadataImage()
    for offset, record in enumerate(records):
        all_at_once.replay(record)
        one_by_one = replayed(one_by_one, [record], offset, 1)
    assert all_at_once.image(len(written) - 1, 1) == controller.image
    assert one_by_one == controller.image
