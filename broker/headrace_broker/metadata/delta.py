"""Replays metadata records on an image.

A delta copies a table of the image on the first change to that table, so replaying many records copies each table at
most once. A delta also lists the changed partitions and the removed topics. Brokers use these lists to update their
replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace_broker.metadata.image import (
    TOPIC_RESOURCE,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace_broker.metadata.protections import Protection, protection_of
from headrace_broker.protocol.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)

_CHANGED_LISTS = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)


class ReplayError(Exception):
    """A record contradicts the image on which it is replayed. The metadata log is corrupt, or the code has a bug."""


def apply_records(base: MetadataImage, records: Iterable[MetadataRecord], offset: int, epoch: int) -> MetadataImage:
    """Return the image after `records`. The last record is at `offset`, in leader epoch `epoch`. Raises ReplayError."""
    delta = MetadataDelta(base)
    for record in records:
        delta.replay(record)
    return delta.image(offset, epoch)


def diff_images(base: MetadataImage, image: MetadataImage) -> MetadataDelta:
    """Return the delta from `base` to `image`, for listeners that need a delta after a snapshot was loaded."""
    delta = MetadataDelta(base)
    for topic in base.topics.values():
        if topic.topic_id not in image.topic_names:
            delta.removed_topics[topic.topic_id] = topic
    for name, topic in image.topics.items():
        known = base.topics.get(name)
        if known != topic:
            before = () if known is None or known.topic_id != topic.topic_id else known.partitions
            delta.changed_topics[name] = {
                index
                for index, partition in enumerate(topic.partitions)
                if index >= len(before) or before[index] != partition
            }
    delta.changed_configs = {
        key for key in base.configs.keys() | image.configs.keys() if base.configs.get(key) != image.configs.get(key)
    }
    return delta


def apply_partition_change(old: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """Return the partition after the change in `record`."""
    changes: dict[str, Any] = {"partition_epoch": old.partition_epoch + 1}
    for attribute in _CHANGED_LISTS:
        value = getattr(record, attribute)
        if value is not None:
            changes[attribute] = tuple(value)
    if record.leader != -2:
        changes["leader"] = record.leader
        changes["leader_epoch"] = old.leader_epoch + 1
    if record.leader_recovery_state != -1:
        changes["leader_recovery_state"] = record.leader_recovery_state
    return replace(old, **changes)


class MetadataDelta:
    """The changes that a sequence of records makes to `base`."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.changed_topics: dict[str, set[int]] = {}
        """Topic name -> ids of the partitions that were created or changed."""
        self.removed_topics: dict[bytes, TopicImage] = {}
        self.changed_configs: set[tuple[int, str]] = set()
        self._brokers: dict[int, BrokerImage] | None = None
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[bytes, str] | None = None
        self._configs: dict[tuple[int, str], Mapping[str, str]] | None = None
        self._features: dict[str, int] | None = None
        self._next_producer_id = base.next_producer_id
        self._protections: dict[Protection, MetadataRecord] | None = None
        self._changed_partitions: dict[str, list[PartitionImage]] = {}

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. Raises ReplayError if the record contradicts the image or has an unknown type."""
        replay = _REPLAY.get(type(record))
        if replay is None:
            raise ReplayError(f"metadata record {type(record).__name__} is not supported by this version")
        replay(self, record)

    def image(self, offset: int, epoch: int) -> MetadataImage:
        """Return the image after all replayed records. The last record is at `offset`, in leader epoch `epoch`."""
        self._store_changed_partitions()
        base = self.base
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            brokers=base.brokers if self._brokers is None else self._brokers,
            topics=base.topics if self._topics is None else self._topics,
            topic_names=base.topic_names if self._topic_names is None else self._topic_names,
            configs=base.configs if self._configs is None else self._configs,
            features=base.features if self._features is None else self._features,
            next_producer_id=self._next_producer_id,
            protections=base.protections if self._protections is None else self._protections,
        )

    # -- tables, copied on the first write ---------------------------------------------------------------------

    def _writable_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self.base.brokers)
        return self._brokers

    def _writable_topics(self) -> tuple[dict[str, TopicImage], dict[bytes, str]]:
        if self._topics is None or self._topic_names is None:
            self._topics = dict(self.base.topics)
            self._topic_names = dict(self.base.topic_names)
        return self._topics, self._topic_names

    def _writable_configs(self) -> dict[tuple[int, str], Mapping[str, str]]:
        if self._configs is None:
            self._configs = dict(self.base.configs)
        return self._configs

    def _store_changed_partitions(self) -> None:
        """Move the changed partitions from `_changed_partitions` into their topics."""
        if self._changed_partitions:
            topics, _ = self._writable_topics()
            for name, partitions in self._changed_partitions.items():
                topics[name] = replace(topics[name], partitions=tuple(partitions))
            self._changed_partitions.clear()

    def _writable_partitions(self, topic_id: bytes, index: int) -> tuple[str, list[PartitionImage]]:
        """Return a topic's name and a mutable list of its partitions, and mark partition `index` as changed."""
        topics, names = self._writable_topics()
        name = names.get(topic_id)
        if name is None:
            raise ReplayError(f"a partition record refers to topic id {topic_id.hex()}, which does not exist")
        self.changed_topics.setdefault(name, set()).add(index)
        partitions = self._changed_partitions.get(name)
        if partitions is None:
            partitions = self._changed_partitions[name] = list(topics[name].partitions)
        return name, partitions

    # -- records -----------------------------------------------------------------------------------------------

    def _topic(self, record: TopicRecord) -> None:
        topics, names = self._writable_topics()
        if record.name in topics:
            raise ReplayError(f"a record creates topic {record.name}, which already exists")
        topics[record.name] = TopicImage(record.name, record.topic_id)
        names[record.topic_id] = record.name
        self.changed_topics[record.name] = set()

    def _partition(self, record: PartitionRecord) -> None:
        name, partitions = self._writable_partitions(record.topic_id, record.partition_id)
        if record.partition_id > len(partitions):
            raise ReplayError(
                f"a record creates {name}-{record.partition_id}, but {name} has only {len(partitions)} partitions"
            )
        image = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories),
            removing_replicas=tuple(record.removing_replicas),
            adding_replicas=tuple(record.adding_replicas),
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
        )
        if record.partition_id == len(partitions):
            partitions.append(image)
        else:
            partitions[record.partition_id] = image

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        name, partitions = self._writable_partitions(record.topic_id, record.partition_id)
        if not 0 <= record.partition_id < len(partitions):
            raise ReplayError(f"a record changes {name}-{record.partition_id}, which does not exist")
        partitions[record.partition_id] = apply_partition_change(partitions[record.partition_id], record)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        self._store_changed_partitions()
        topics, names = self._writable_topics()
        name = names.pop(record.topic_id, None)
        if name is None:
            raise ReplayError(f"a record removes topic id {record.topic_id.hex()}, which does not exist")
        self.removed_topics[record.topic_id] = topics.pop(name)
        self.changed_topics.pop(name, None)
        if (TOPIC_RESOURCE, name) in (self.base.configs if self._configs is None else self._configs):
            del self._writable_configs()[TOPIC_RESOURCE, name]

    def _config(self, record: ConfigRecord) -> None:
        configs = self._writable_configs()
        key = (record.resource_type, record.resource_name)
        self.changed_configs.add(key)
        values = dict(configs.get(key, ()))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[key] = values
        else:
            configs.pop(key, None)
        self._protection(record)

    def _protection(self, record: MetadataRecord) -> None:
        change = protection_of(record)
        if change is None:
            return
        protection, is_set = change
        if self._protections is None:
            self._protections = dict(self.base.protections)
        if is_set:
            self._protections[protection] = record
        else:
            self._protections.pop(protection, None)

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if self._features is None:
            self._features = dict(self.base.features)
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise ReplayError(
                f"a record decreases the next producer id from {self._next_producer_id} to {record.next_producer_id}"
            )
        self._next_producer_id = record.next_producer_id

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._writable_brokers()[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            incarnation_id=record.incarnation_id,
            epoch=record.broker_epoch,
            endpoints=tuple(
                Endpoint(item.name, item.host, item.port, item.security_protocol) for item in record.end_points
            ),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            features=tuple(
                (item.name, item.min_supported_version, item.max_supported_version) for item in record.features
            ),
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._writable_brokers().pop(record.broker_id, None)

    def _change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        brokers = self._writable_brokers()
        old = brokers.get(record.broker_id)
        if old is None or old.epoch != record.broker_epoch:
            raise ReplayError(
                f"a record changes broker {record.broker_id}, which is not registered "
                f"with broker epoch {record.broker_epoch}"
            )
        brokers[record.broker_id] = replace(
            old,
            fenced=old.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=old.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            log_dirs=tuple(record.log_dirs) or old.log_dirs,
        )

    def _no_op(self, record: MetadataRecord) -> None:
        """Do nothing, because a NoOpRecord only advances the offset."""


_REPLAY: dict[type, Callable[[MetadataDelta, Any], None]] = {
    TopicRecord: MetadataDelta._topic,
    PartitionRecord: MetadataDelta._partition,
    PartitionChangeRecord: MetadataDelta._partition_change,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    ConfigRecord: MetadataDelta._config,
    FeatureLevelRecord: MetadataDelta._feature_level,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    RegisterBrokerRecord: MetadataDelta._register_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._change_registration,
    NoOpRecord: MetadataDelta._no_op,
    AccessControlEntryRecord: MetadataDelta._protection,
    RemoveAccessControlEntryRecord: MetadataDelta._protection,
    UserScramCredentialRecord: MetadataDelta._protection,
    RemoveUserScramCredentialRecord: MetadataDelta._protection,
    ClientQuotaRecord: MetadataDelta._protection,
    DelegationTokenRecord: MetadataDelta._protection,
    RemoveDelegationTokenRecord: MetadataDelta._protection,
}
