"""Computes the partition changes that follow from broker state changes, config changes and requested elections.

Every function reads an image and returns records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.partition_changes import NO_LEADER, Election, PartitionChange
from headrace_broker.protocol.metadata_records import MetadataRecord, PartitionChangeRecord

UNASSIGNED_DIRECTORY = bytes(16)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The topic configs that elections depend on, as functions of the image and the topic name."""

    min_insync_replicas: Callable[[MetadataImage, str], int]
    unclean_election_enabled: Callable[[MetadataImage, str], bool]


def partition_change(
    image: MetadataImage, topic: TopicImage, index: int, topic_configs: TopicConfigs
) -> PartitionChange:
    """Return a `PartitionChange` object for the topic's partition `index`.

    To request a change, the caller sets fields of this object, for example `isr`.
    """
    partition = topic.partitions[index]
    unclean = topic_configs.unclean_election_enabled(image, topic.name)
    return PartitionChange(
        topic_id=topic.topic_id,
        index=index,
        partition=partition,
        may_lead=lambda replica: is_live(image, replica),
        min_insync_replicas=min(topic_configs.min_insync_replicas(image, topic.name), len(partition.replicas)),
        default_directory=lambda replica: default_directory(image, replica),
        election=Election.UNCLEAN if unclean else Election.ONLINE,
    )


def is_live(image: MetadataImage, broker_id: int) -> bool:
    """Return whether the broker can be elected leader: it is registered, unfenced and not in controlled shutdown."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def default_directory(image: MetadataImage, broker_id: int) -> bytes:
    """Return the id of the broker's log directory if the broker has exactly one.

    Otherwise return UNASSIGNED, so that the broker chooses a directory.
    """
    broker = image.brokers.get(broker_id)
    directories = () if broker is None else broker.log_dirs
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY


def remove_broker_from_isrs(
    image: MetadataImage,
    broker_id: int,
    topic_configs: TopicConfigs,
    *,
    unclean_shutdown: bool = False,
    keep_sole_replicas: bool = False,
) -> list[MetadataRecord]:
    """Remove a broker from every ISR and move its leaderships, because it was fenced, is stopping or has restarted.

    After an unclean shutdown the broker may have lost unflushed records, so it is removed from the eligible leader
    replicas too. With `keep_sole_replicas`, a partition whose only replica is on this broker does not change, because
    no other broker can lead it, and this broker will be unfenced soon.
    """
    records: list[MetadataRecord] = []
    for topic, index, partition in _partitions(image):
        if keep_sole_replicas and partition.replicas == (broker_id,):
            continue
        is_eligible = broker_id in partition.eligible_leader_replicas
        if broker_id not in partition.isr and partition.leader != broker_id and not (unclean_shutdown and is_eligible):
            continue
        change = partition_change(image, topic, index, topic_configs)
        live = change.may_lead
        change.may_lead = lambda replica, live=live: replica != broker_id and live(replica)  # type: ignore[misc]
        change.isr = [replica for replica in partition.isr if replica != broker_id]
        if unclean_shutdown:
            change.unclean_shutdowns = (broker_id,)
        _append(records, change.record())
    return records


def elect_leaders_for_unfenced_broker(
    image: MetadataImage, broker_id: int, topic_configs: TopicConfigs
) -> list[MetadataRecord]:
    """When a broker is unfenced, elect leaders for the leaderless partitions that have a replica on the broker."""
    records: list[MetadataRecord] = []
    for topic, index, partition in _partitions(image):
        if partition.leader != NO_LEADER or broker_id not in partition.replicas:
            continue
        change = partition_change(image, topic, index, topic_configs)
        live = change.may_lead
        change.may_lead = lambda replica, live=live: replica == broker_id or live(replica)  # type: ignore[misc]
        _append(records, change.record())
    return records


def is_leader_of_any_partition(image: MetadataImage, broker_id: int) -> bool:
    """Return whether the broker is the leader of any partition."""
    return any(partition.leader == broker_id for _, _, partition in _partitions(image))


def apply_changed_election_configs(
    image: MetadataImage, topics: Iterable[str], topic_configs: TopicConfigs
) -> list[MetadataRecord]:
    """Update the topics' partitions after min.insync.replicas or unclean.leader.election.enable has changed.

    `image` contains the new configs. The change may clear eligible leader replicas, and elect a leader for a partition
    without a leader.
    """
    records: list[MetadataRecord] = []
    for name in topics:
        topic = image.topics[name]
        for index in range(len(topic.partitions)):
            _append(records, partition_change(image, topic, index, topic_configs).record())
    return records


def imbalanced_partitions(image: MetadataImage, percentage: int = 0) -> list[tuple[TopicImage, int]]:
    """Return the partitions for which to hold a preferred leader election.

    A partition is included only if its preferred replica is live and in sync, and if more than `percentage` percent of
    the partitions that prefer this replica's broker have another leader (leader.imbalance.per.broker.percentage).
    """
    preferred_counts: Counter[int] = Counter()
    led_by_others: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic, index, partition in _partitions(image):
        preferred = partition.replicas[0]
        preferred_counts[preferred] += 1
        if partition.leader != preferred:
            led_by_others.setdefault(preferred, []).append((topic, index))
    return [
        (topic, index)
        for preferred, partitions in led_by_others.items()
        if is_live(image, preferred) and len(partitions) * 100 > preferred_counts[preferred] * percentage
        for topic, index in partitions
        if preferred in topic.partitions[index].isr
    ]


def elect_leader(
    image: MetadataImage, topic: TopicImage, index: int, topic_configs: TopicConfigs, election: Election
) -> PartitionChangeRecord | None:
    """Return the record of a requested election, or None if the election changes nothing."""
    change = partition_change(image, topic, index, topic_configs)
    change.election = election
    return change.record()


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _append(records: list[MetadataRecord], record: PartitionChangeRecord | None) -> None:
    if record is not None:
        records.append(record)
