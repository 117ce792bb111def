"""A client's view of the cluster metadata: brokers, topics, partitions and their leaders, in immutable objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from headrace_broker.protocol.notation import ZERO_UUID


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and the address of its listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition's metadata. `leader_id` is -1 while the partition has no leader."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic's metadata. `partitions[n]` is partition n."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionView, ...]

    @property
    def available(self) -> list[int]:
        """The partitions that have a leader."""
        return [view.partition for view in self.partitions if view.leader_id >= 0]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers and topics of a cluster. `errors` holds the error of each requested topic that is not in `topics`."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> PartitionView | None:
        """Return the partition if its leader is a known broker, else None."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        view = known.partitions[partition]
        return view if view.leader_id in self.nodes else None

    def is_replica(self, topic: str, partition: int, node_id: int) -> bool:
        """Return whether the broker `node_id` is known and has an online replica of the partition."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions) or node_id not in self.nodes:
            return False
        view = known.partitions[partition]
        return node_id in view.replicas and node_id not in view.offline_replicas

    def topic_by_id(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, or None if the id is unknown."""
        return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def updated(self, response: MetadataResponse, *, requested: Iterable[str] | None) -> ClusterView:
        """Return a copy of this view, updated with a Metadata response.

        `requested` is None if all topics were requested.
        """
        nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        topics = {} if requested is None else dict(self.topics)
        errors = {} if requested is None else dict(self.errors)
        for name in requested or ():
            topics.pop(name, None)
            errors.pop(name, None)
        for topic in response.topics:
            name = topic.name or ""
            code = ErrorCode.from_code(topic.error_code)
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) or not topic.partitions:
                errors[name] = code if code else ErrorCode.LEADER_NOT_AVAILABLE
            else:
                topics[name] = _topic_view(topic, self.topics.get(name))
        return ClusterView(response.cluster_id, response.controller_id, nodes or self.nodes, topics, errors)

    def with_node(self, node: Node) -> ClusterView:
        """Return a copy of this view that includes `node`, such as a coordinator from a FindCoordinator response."""
        return replace(self, nodes={**self.nodes, node.node_id: node})


def _topic_view(topic: MetadataResponseTopic, known: TopicView | None) -> TopicView:
    """Return the topic's view.

    If `known` contains a newer leader epoch of a partition than the response, keep the partition from `known`
    (KIP-320).
    """
    partitions = []
    for part in sorted(topic.partitions, key=lambda item: item.partition_index):
        view = PartitionView(
            part.partition_index,
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas),
            part.error_code,
        )
        is_same_topic = known is not None and known.topic_id == topic.topic_id != ZERO_UUID
        if is_same_topic and known is not None and view.partition < len(known.partitions):
            before = known.partitions[view.partition]
            if 0 <= view.leader_epoch < before.leader_epoch:
                view = before
        partitions.append(view)
    return TopicView(topic.name or "", topic.topic_id, topic.is_internal, tuple(partitions))
