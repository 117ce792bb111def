"""Small cluster images for tests of decisions, and the change that a decision makes to them."""

from __future__ import annotations

from typing import Any

from headrace_broker.metadata.delta import replayed
from headrace_broker.metadata.image import BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicRules
from headrace_broker.metadata.outcome import Outcome

TOPIC_ID = b"t" * 16


def broker_image(
    broker_id: int, *, fenced: bool = False, stopping: bool = False, rack: str | None = None
) -> BrokerImage:
    """A broker whose epoch is 100 + its id, with one directory."""
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
    """A partition by the digits of its replicas, e.g. ("123", "12", 1)."""
    members = tuple(map(int, replicas))
    return PartitionImage(
        replicas=members,
        isr=tuple(map(int, isr)),
        leader=leader,
        directories=tuple(bytes([broker]) * 16 for broker in members),
        eligible_leader_replicas=tuple(map(int, elr)),
        **more,
    )


def cluster_image(*partitions: PartitionImage, brokers: str = "123", fenced: str = "") -> MetadataImage:
    """Brokers by their digits, and a topic `t` with these partitions."""
    return MetadataImage(
        offset=500,
        brokers={int(digit): broker_image(int(digit), fenced=digit in fenced) for digit in brokers},
        topics={"t": TopicImage("t", TOPIC_ID, tuple(partitions))} if partitions else {},
        topic_names={TOPIC_ID: "t"} if partitions else {},
    )


def rules(min_insync: int = 2, *, unclean: bool = False) -> TopicRules:
    """The same rules for every topic."""
    return TopicRules(lambda image, topic: min_insync, lambda image, topic: unclean)


def after(image: MetadataImage, outcome: Outcome[Any]) -> MetadataImage:
    """The image with the records of the outcome."""
    return replayed(image, outcome.records, image.offset + len(outcome.records), 1)


def shown(image: MetadataImage, index: int = 0) -> str:
    """A partition of `t` in one line: leader/isr/elr/last known."""
    partition = image.topics["t"].partitions[index]
    parts = (partition.isr, partition.eligible_leader_replicas, partition.last_known_elr)
    return "/".join([str(partition.leader), *("".join(map(str, part)) for part in parts)])
