"""The metadata image: brokers, topics, partitions, configs and features at one offset of the metadata log.

An image is immutable: `delta.apply_records` returns a new image that shares every unchanged table with the old image.
A reader may keep an image as long as necessary, and a revert to the committed state only needs a reference to the
committed image. Spec: KIP-500, KIP-631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.metadata.protections import Protection
    from headrace_broker.protocol.metadata_records import MetadataRecord

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4

_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one listener of a broker."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered broker; its epoch is the offset of its registration record."""

    broker_id: int
    incarnation_id: bytes
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    """(name, lowest supported level, highest supported level)."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the endpoint of the named listener, or None if the broker has no such listener."""
        return next((item for item in self.endpoints if item.name == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition's replicas and leadership."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def is_recoverable_from_other_replica(self, replica: int) -> bool:
        """Whether `replica` can fetch lost records from another replica that is the leader or may become the leader.

        The result is False for the last in-sync replica. After a restart, this replica is elected leader again even if
        its log is corrupt, and records that it has truncated may be missing on all other replicas.
        """
        if any(other != replica for other in (*self.isr, *self.eligible_leader_replicas)):
            return True
        return not self.isr and self.last_known_elr not in ((), (replica,))


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. The index in `partitions` is the partition id."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster's state after all records of the metadata log up to and including `offset`."""

    offset: int = -1
    epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    protections: Mapping[Protection, MetadataRecord] = field(default_factory=dict)
    """The protections that headrace does not support, with the record that sets each of them."""

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic with this id, or None if it does not exist."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return the configs set on a topic, without defaults."""
        return self.configs.get((TOPIC_RESOURCE, topic), _EMPTY)

    def broker_configs(self, broker_id: int | None = None) -> Mapping[str, str]:
        """Return the dynamic configs of one broker, or the cluster-wide dynamic defaults if `broker_id` is None."""
        return self.configs.get((BROKER_RESOURCE, "" if broker_id is None else str(broker_id)), _EMPTY)

    def live_brokers(self) -> list[BrokerImage]:
        """Return the brokers that can be elected leader: all that are registered, unfenced and not shutting down."""
        return [item for item in self.brokers.values() if not (item.fenced or item.in_controlled_shutdown)]
