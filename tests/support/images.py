"""Builds small metadata images for tests of controller operations, and applies the operations' records to images."""

from __future__ import annotations

from typing import Any

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicConfigs

TOPIC_ID = b"t" * 16


def broker_image(
    broker_id: int, *, fenced: bool = False, stopping: bool = False, rack: str | None = None
) -> BrokerImage:
    """Return a broker with epoch 100 + id and one log directory."""
    return BrokerImage(
        broker_id,
        bytes([broker_id]) * 16,
        100 + broker_id,
        (Endpoint("PLAINTEXT", f"host{broker_id}", 9092),),
        rack=rack,
        fenced=fenced,
        in_controlled_shutdown=stopping,
        log_dirs=(bytes([broker_id]) * 16,),
    )


def partition_image(replicas: str, isr: str, leader: int, elr: str = "", **more: Any) -> PartitionImage:
    """Return a partition. Each digit is a broker id, e.g. ("123", "12", 1): replicas 1, 2, 3, ISR 1, 2, leader 1."""
    broker_ids = tuple(map(int, replicas))
    return PartitionImage(
        replicas=broker_ids,
        isr=tuple(map(int, isr)),
        leader=leader,
        directories=tuple(bytes([broker]) * 16 for broker in broker_ids),
        eligible_leader_replicas=tuple(map(int, elr)),
        **more,
    )


def cluster_image(*partitions: PartitionImage, brokers: str = "123", fenced: str = "") -> MetadataImage:
    """Return an image with brokers and a topic `t` that has `partitions`.

    Each digit of `brokers` is a broker id. The brokers whose ids are also in `fenced` are fenced.
    """
    return MetadataImage(
        offset=500,
        brokers={int(digit): broker_image(int(digit), fenced=digit in fenced) for digit in brokers},
        topics={"t": TopicImage("t", TOPIC_ID, tuple(partitions))} if partitions else {},
        topic_names={TOPIC_ID: "t"} if partitions else {},
    )


def topic_configs(min_insync: int = 2, *, unclean: bool = False) -> TopicConfigs:
    """Return topic configs with the same values for every topic.

    `min_insync` is min.insync.replicas, and `unclean` is unclean.leader.election.enable.
    """
    return TopicConfigs(lambda image, topic: min_insync, lambda image, topic: unclean)


def apply_result(image: MetadataImage, result: ControllerResult[Any]) -> MetadataImage:
    """Apply the records of an operation's result to the image. Return the new image."""
    return apply_records(image, result.records, image.offset + len(result.records), 1)


def describe_partition(image: MetadataImage, index: int = 0) -> str:
    """Describe partition `index` of the topic named `t` as "leader/isr/elr/last known leader"."""
    partition = image.topics["t"].partitions[index]
    parts = (partition.isr, partition.eligible_leader_replicas, partition.last_known_elr)
    return "/".join([str(partition.leader), *("".join(map(str, part)) for part in parts)])
