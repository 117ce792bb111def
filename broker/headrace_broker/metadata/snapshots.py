"""Converts an image to the records of a metadata snapshot and back (KIP-630).

Invariant: replaying `image_records(image)` on an empty image yields an equal image, except for its offset and epoch.
A record follows the records it depends on. The records are generated lazily, so a large image does not block the
event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage
from headrace_broker.protocol.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

_NO_BROKER = -1


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the records that build the image from an empty image, features first, in Kafka's order."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield _registration(broker)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, partition in enumerate(topic.partitions):
            yield _partition(topic.topic_id, index, partition)
    for (kind, name), values in image.configs.items():
        for key, value in values.items():
            yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
    if image.next_producer_id > 0:
        yield ProducerIdsRecord(broker_id=_NO_BROKER, broker_epoch=_NO_BROKER, next_producer_id=image.next_producer_id)
    yield from (record for record in image.protections.values() if not isinstance(record, ConfigRecord))


def image_from_records(records: Iterable[MetadataRecord], offset: int, epoch: int) -> MetadataImage:
    """Build the image at `offset`, in leader epoch `epoch`, from the records of a snapshot. Raises ReplayError."""
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record)
    return delta.image(offset, epoch)


def _registration(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol)
            for item in broker.endpoints
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
    )


def _partition(topic_id: bytes, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
