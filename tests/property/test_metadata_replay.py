"""Checks the controller's invariants under random sequences of requests.

* The controller's metadata image equals the image that is rebuilt from the records that the controller wrote.
* An image that is rebuilt from the records of its snapshot equals the original image.
* In every partition, the leader is in the ISR, the ISR is a subset of the replicas, ISR and ELR are
  disjoint, and leader epochs and partition epochs never decrease.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_broker.metadata.brokers import fence_broker, heartbeat, register_broker, unregister_broker
from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.configs import alter_configs
from headrace_broker.metadata.controller import Controller
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import MetadataDelta, apply_records, diff_images
from headrace_broker.metadata.elections import elect_leaders
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, PartitionImage
from headrace_broker.metadata.isr import alter_partitions
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.metadata.reassignment import alter_reassignments, grow_internal_topics
from headrace_broker.metadata.snapshots import image_from_records, image_records
from headrace_broker.metadata.topics import TopicDefaults, create_partitions, create_topics, delete_topics
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace_broker.protocol.metadata_records import MetadataRecord, decode_metadata_record, encode_metadata_record
from headrace_broker.server.kraft.snapshot_files import encode_snapshot, parse_snapshot
from headrace_broker.server.log_config_provider import controller_topic_configs
from support.examples import examples

CONTROLLER_CONFIGS = controller_topic_configs({})
brokers = st.integers(1, 4)
names = st.sampled_from(["a", "b", "c.d", "c_d", "bad name", "__consumer_offsets"])
configs = st.dictionaries(
    st.sampled_from(["retention.ms", "cleanup.policy", "nonsense"]), st.sampled_from(["100", "compact", "delete"])
)
steps = st.one_of(
    st.tuples(st.just("create"), names, st.integers(-2, 4), st.integers(-1, 4), configs),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("grow"), names, st.integers(0, 6)),
    st.tuples(st.just("alter"), names, st.sampled_from(["retention.ms", "min.insync.replicas"]), st.integers(0, 3)),
    st.tuples(st.just("broker config"), st.sampled_from(["", "1"]), st.booleans()),
    st.tuples(st.just("ids")),
    st.tuples(st.just("register"), brokers, st.booleans()),
    st.tuples(st.just("heartbeat"), brokers, st.booleans()),
    st.tuples(st.just("fence"), brokers),
    st.tuples(st.just("unregister"), brokers),
    st.tuples(st.just("isr"), names, st.integers(0, 2), st.sets(brokers, min_size=1)),
    st.tuples(st.just("move"), names, st.integers(0, 2), st.lists(brokers, min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("cancel"), names, st.integers(0, 2)),
    st.tuples(st.just("elect"), st.integers(0, 1)),
    st.tuples(st.just("internal")),
)


class SimulatedController:
    """Executes the generated steps as the active controller would."""

    def __init__(self) -> None:
        self.controller = Controller(MetadataImage(), epoch=1)
        self.written: list[bytes] = []
        self._ids = count(1)
        self.liveness = BrokerLiveness(9000)
        self.now_ms = 0

    def submit(self, operation: Any) -> None:
        before = self.controller.image
        try:
            result = self.controller.run(operation, len(self.written))
        except ApiError:
            assert self.controller.image is before
            return
        self.written.extend(encode_metadata_record(record) for record in result.records)

    def step(self, step: tuple[Any, ...]) -> None:
        self.now_ms += 1000
        operation = getattr(self, step[0].replace(" ", "_"))
        self.submit(lambda image: operation(image, *step[1:]))

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(16)

    def create(
        self, image: MetadataImage, name: str, partitions: int, factor: int, configs: Any
    ) -> ControllerResult[Any]:
        values = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=values)
        request = CreateTopicsRequest(topics=[topic])
        return create_topics(image, request, defaults=TopicDefaults(2, 2), broker_properties={}, new_id=self.new_id)

    def delete(self, image: MetadataImage, name: str) -> ControllerResult[Any]:
        return delete_topics(image, [(name, bytes(16))])

    def grow(self, image: MetadataImage, name: str, total: int) -> ControllerResult[Any]:
        topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
        return create_partitions(image, CreatePartitionsRequest(topics=[topic]))

    def alter(self, image: MetadataImage, name: str, key: str, operation: int) -> ControllerResult[Any]:
        return alter_configs(image, [(TOPIC_RESOURCE, name, [(key, operation, "3")])], CONTROLLER_CONFIGS)

    def broker_config(self, image: MetadataImage, name: str, enable: bool) -> ControllerResult[Any]:
        value = "true" if enable else "false"
        return alter_configs(
            image, [(BROKER_RESOURCE, name, [("unclean.leader.election.enable", 0, value)])], CONTROLLER_CONFIGS
        )

    def ids(self, image: MetadataImage) -> ControllerResult[Any]:
        return allocate_producer_ids(image, 1)

    def register(self, image: MetadataImage, broker: int, was_clean: bool) -> ControllerResult[Any]:
        known = image.brokers.get(broker)
        request = BrokerRegistrationRequest(
            broker_id=broker,
            cluster_id="C",
            incarnation_id=self.new_id(),
            listeners=[Listener(name="PLAINTEXT", host="localhost", port=9092, security_protocol=0)],
            features=[Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)],
            rack=f"rack{broker % 2}",
            log_dirs=[bytes(15) + bytes([broker])],
            previous_broker_epoch=known.epoch if known is not None and was_clean else -1,
        )
        self.liveness.on_registered(broker, self.now_ms)
        return register_broker(
            image,
            request,
            cluster_id="C",
            next_offset=len(self.written),
            is_alive=False,
            topic_configs=CONTROLLER_CONFIGS,
        )

    def heartbeat(self, image: MetadataImage, broker: int, want_shut_down: bool) -> ControllerResult[Any]:
        epoch = image.brokers[broker].epoch if broker in image.brokers else 0
        request = BrokerHeartbeatRequest(
            broker_id=broker,
            broker_epoch=epoch,
            current_metadata_offset=len(self.written),
            want_shut_down=want_shut_down,
        )
        self.liveness.on_heartbeat(broker, len(self.written), self.now_ms)
        return heartbeat(image, request, self.liveness, CONTROLLER_CONFIGS, len(self.written))

    def fence(self, image: MetadataImage, broker: int) -> ControllerResult[Any]:
        known = image.brokers.get(broker)
        return ControllerResult(
            None, [] if known is None or known.fenced else fence_broker(image, known, CONTROLLER_CONFIGS)
        )

    def unregister(self, image: MetadataImage, broker: int) -> ControllerResult[Any]:
        return unregister_broker(image, broker, CONTROLLER_CONFIGS)

    def isr(self, image: MetadataImage, name: str, index: int, isr: set[int]) -> ControllerResult[Any]:
        partition = partition_of(image, name, index)
        if partition is None or partition.leader < 0:
            return ControllerResult(None)
        states = [BrokerState(broker_id=broker) for broker in sorted({*isr, partition.leader})]
        data = AlterPartitionRequestPartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=states,
        )
        topic = AlterPartitionRequestTopicData(topic_id=image.topics[name].topic_id, partitions=[data])
        epoch = image.brokers[partition.leader].epoch
        request = AlterPartitionRequest(broker_id=partition.leader, broker_epoch=epoch, topics=[topic])
        return alter_partitions(image, request, CONTROLLER_CONFIGS)

    def move(self, image: MetadataImage, name: str, index: int, replicas: list[int] | None) -> ControllerResult[Any]:
        topic = ReassignableTopic(
            name=name, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)]
        )
        return alter_reassignments(image, AlterPartitionReassignmentsRequest(topics=[topic]), CONTROLLER_CONFIGS)

    def cancel(self, image: MetadataImage, name: str, index: int) -> ControllerResult[Any]:
        return self.move(image, name, index, None)

    def elect(self, image: MetadataImage, kind: int) -> ControllerResult[Any]:
        return elect_leaders(image, ElectLeadersRequest(election_type=kind, topic_partitions=None), CONTROLLER_CONFIGS)

    def internal(self, image: MetadataImage) -> ControllerResult[Any]:
        return grow_internal_topics(image, 3, CONTROLLER_CONFIGS)


def partition_of(image: MetadataImage, name: str, index: int) -> PartitionImage | None:
    topic = image.topics.get(name)
    return None if topic is None or index >= len(topic.partitions) else topic.partitions[index]


def check_partitions(before: MetadataImage, image: MetadataImage) -> None:
    for topic in image.topics.values():
        old = before.topic_by_id(topic.topic_id)
        for index, partition in enumerate(topic.partitions):
            where = (topic.name, index, partition)
            replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.eligible_leader_replicas)
            assert partition.leader in {-1, *isr}, where
            assert len(replicas) == len(partition.replicas) == len(partition.directories), where
            assert isr | elr | {*partition.adding_replicas, *partition.removing_replicas} <= replicas, where
            assert not isr & elr, where
            if old is not None and index < len(old.partitions):
                was = old.partitions[index]
                assert partition.leader_epoch >= was.leader_epoch, where
                assert partition == was or partition.partition_epoch > was.partition_epoch, where
                assert partition.leader == was.leader or partition.leader_epoch > was.leader_epoch, where


@settings(deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40))
def test_metadata_image_is_consistent_and_equals_the_images_rebuilt_from_its_records_and_its_snapshot(
    steps_taken: list[tuple[Any, ...]],
) -> None:
    simulated = SimulatedController()
    simulated.submit(lambda image: ControllerResult(None, bootstrap_records(image, 2)))
    started: list[tuple[Any, ...]] = [("register", 1, True), ("heartbeat", 1, False), ("register", 2, True)]
    for step in [*started, ("heartbeat", 2, False), *steps_taken]:
        before = simulated.controller.image
        simulated.step(step)
        check_partitions(before, simulated.controller.image)
    image = simulated.controller.image

    records: list[MetadataRecord] = [decode_metadata_record(value) for value in simulated.written]
    all_at_once = MetadataDelta(MetadataImage())
    one_by_one = MetadataImage()
    for offset, record in enumerate(records):
        all_at_once.replay(record)
        one_by_one = apply_records(one_by_one, [record], offset, 1)
    assert all_at_once.image(len(records) - 1, 1) == image
    assert one_by_one == image

    written = b"".join(encode_snapshot(image_records(image), image.epoch, 1_700_000_000_000))
    assert image_from_records(parse_snapshot(written), image.offset, image.epoch) == image
    delta = diff_images(MetadataImage(), image)
    assert delta.changed_topics.keys() == image.topics.keys()
    assert delta.changed_configs == set(image.configs)
