"""The cluster image: brokers, topics, partitions, configs and features at one offset of the metadata log.

Immutable: `apply` returns a new image that shares whatever did not change, so a reader may keep one as long as it
likes, and going back to a committed state is keeping a reference.  Spec: KIP-500/631, Kafka's metadata records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4

_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one listener of a broker is reached."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered broker; its epoch is the offset of its registration."""

    broker_id: int
    incarnation_id: bytes
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    """(name, lowest, highest level that it supports)."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of the named listener, or None."""
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

    def is_held_beside(self, replica: int) -> bool:
        """Whether what this replica has lost can be had from another one, which has, or will pass for having, it all.

        The last in-sync replica is turned to again, however it comes back: what it cuts away is gone.
        """
        if any(holder != replica for holder in (*self.isr, *self.eligible_leader_replicas)):
            return True
        return not self.isr and self.last_known_elr not in ((), (replica,))


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: its partitions are numbered from 0 without a gap."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything the metadata log says up to and including `offset`."""

    offset: int = -1
    epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic with this id, or None."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The configs set on a topic, without defaults."""
        return self.configs.get((TOPIC_RESOURCE, topic), _EMPTY)

    def broker_configs(self, broker_id: int | None = None) -> Mapping[str, str]:
        """The configs that were altered for all brokers, or for one of them alone."""
        return self.configs.get((BROKER_RESOURCE, "" if broker_id is None else str(broker_id)), _EMPTY)

    def live_brokers(self) -> list[BrokerImage]:
        """The brokers that may be given leadership: registered, unfenced, not shutting down."""
        return [item for item in self.brokers.values() if not (item.fenced or item.in_controlled_shutdown)]
