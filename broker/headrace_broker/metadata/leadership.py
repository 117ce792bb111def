"""Which partitions change when a broker comes, goes or stops, and elections that are asked for.

Every function reads an image and returns records; `TopicRules` answers the two questions that configs decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.partition_changes import NO_LEADER, Election, PartitionChange
from headrace_broker.protocol.metadata_records import MetadataRecord, PartitionChangeRecord

NO_ONE = -1
UNASSIGNED_DIRECTORY = bytes(16)


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic's configs say, given the image and the topic's name."""

    min_insync_replicas: Callable[[MetadataImage, str], int]
    unclean_election_enabled: Callable[[MetadataImage, str], bool]


def change_of(image: MetadataImage, topic: TopicImage, index: int, rules: TopicRules) -> PartitionChange:
    """A change of that partition in which nothing is wanted yet."""
    partition = topic.partitions[index]
    unclean = rules.unclean_election_enabled(image, topic.name)
    return PartitionChange(
        topic_id=topic.topic_id,
        index=index,
        partition=partition,
        may_lead=lambda replica: is_live(image, replica),
        min_insync_replicas=min(rules.min_insync_replicas(image, topic.name), len(partition.replicas)),
        directory_of=lambda replica: directory_of(image, replica),
        election=Election.UNCLEAN if unclean else Election.ONLINE,
    )


def is_live(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker may be given leadership: registered, unfenced, not shutting down."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def directory_of(image: MetadataImage, broker_id: int) -> bytes:
    """The broker's only directory; with several the broker itself chooses, and zeros say "unassigned"."""
    broker = image.brokers.get(broker_id)
    directories = () if broker is None else broker.log_dirs
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY


def broker_leaves(
    image: MetadataImage,
    broker_id: int,
    rules: TopicRules,
    *,
    unclean_shutdown: bool = False,
    keeps_sole_replicas: bool = False,
) -> list[MetadataRecord]:
    """The broker leads no more and is in sync with nothing: it is fenced, stopping, or back without its memory.

    After an unclean shutdown it may lack what it had not flushed, and is no eligible leader either.  What only this
    broker holds may stay with it (`keeps_sole_replicas`): when it is about to return there is nobody else to turn to.
    """
    records: list[MetadataRecord] = []
    for topic, index, partition in _partitions(image):
        if keeps_sole_replicas and partition.replicas == (broker_id,):
            continue
        is_eligible = broker_id in partition.eligible_leader_replicas
        if broker_id not in partition.isr and partition.leader != broker_id and not (unclean_shutdown and is_eligible):
            continue
        change = change_of(image, topic, index, rules)
        live = change.may_lead
        change.may_lead = lambda replica, live=live: replica != broker_id and live(replica)  # type: ignore[misc]
        change.isr = [replica for replica in partition.isr if replica != broker_id]
        if unclean_shutdown:
            change.unclean_shutdowns = (broker_id,)
        _append(records, change.record())
    return records


def broker_returns(image: MetadataImage, broker_id: int, rules: TopicRules) -> list[MetadataRecord]:
    """The broker may lead again: partitions without a leader are given one if it is among those they wait for."""
    records: list[MetadataRecord] = []
    for topic, index, partition in _partitions(image):
        if partition.leader != NO_LEADER or broker_id not in partition.replicas:
            continue
        change = change_of(image, topic, index, rules)
        live = change.may_lead
        change.may_lead = lambda replica, live=live: replica == broker_id or live(replica)  # type: ignore[misc]
        _append(records, change.record())
    return records


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    """Whether any partition is led by the broker."""
    return any(partition.leader == broker_id for _, _, partition in _partitions(image))


def config_changed(image: MetadataImage, topics: Iterable[str], rules: TopicRules) -> list[MetadataRecord]:
    """min.insync.replicas or unclean.leader.election.enable of the topics are other ones in `image`: who is eligible
    follows, and a partition without a leader may be given one."""
    records: list[MetadataRecord] = []
    for name in topics:
        topic = image.topics[name]
        for index in range(len(topic.partitions)):
            _append(records, change_of(image, topic, index, rules).record())
    return records


def imbalanced(image: MetadataImage, percentage: int = 0) -> list[tuple[TopicImage, int]]:
    """The partitions that could be led by their preferred replica and are not, of those brokers that lack more than
    `percentage` of what they should lead (leader.imbalance.per.broker.percentage)."""
    preferred: Counter[int] = Counter()
    lacking: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic, index, partition in _partitions(image):
        wanted = partition.replicas[0]
        preferred[wanted] += 1
        if partition.leader != wanted:
            lacking.setdefault(wanted, []).append((topic, index))
    return [
        (topic, index)
        for wanted, found in lacking.items()
        if is_live(image, wanted) and len(found) * 100 > preferred[wanted] * percentage
        for topic, index in found
        if wanted in topic.partitions[index].isr
    ]


def elect(
    image: MetadataImage, topic: TopicImage, index: int, rules: TopicRules, election: Election
) -> PartitionChangeRecord | None:
    """The record of an election that was asked for, None when it changes nothing."""
    change = change_of(image, topic, index, rules)
    change.election = election
    return change.record()


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _append(records: list[MetadataRecord], record: PartitionChangeRecord | None) -> None:
    if record is not None:
        records.append(record)
