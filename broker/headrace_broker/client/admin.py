"""The admin client, which manages topics, partitions, configurations, records, groups and the cluster.

A method that accepts several resources returns {name: result}, and each result is a value or a BrokerError. If any
result is a BrokerError, `values_or_raise` raises the first such error. A request that fails as a whole with a retriable
error is retried for up to default.api.timeout.ms. The client sends changes to the controller. It sends a request about
a partition to the leader of the partition, and a request about a group to the coordinator of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace_broker.client import admin_groups, admin_replicas, offsets
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import ClusterView, Node, TopicView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import BrokerError, error_or_none
from headrace_broker.client.offsets import ListedOffset
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace_broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.topic_names import TopicPartition

Resource = tuple[int, str]
"""(resource type, resource name), as in DescribeConfigs."""

TOPIC = 2
BROKER = 4
SET, DELETE, APPEND, SUBTRACT = range(4)
"""The operations of `incremental_alter_configs`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. A partition count or replication factor of -1 means the broker's default.

    If `assignments` ({partition: replicas}) is set, partition count and replication factor are ignored.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster, or its controllers if the client is connected to the controllers."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()


def values_or_raise(results: Mapping[str, T | BrokerError]) -> dict[str, T]:
    """Return the results. If any result is a BrokerError, raise the first such error."""
    values = {}
    for name, result in results.items():
        if isinstance(result, BrokerError):
            raise result
        values[name] = result
    return values


class Admin(admin_groups.GroupAdmin, admin_replicas.ReplicaAdmin):
    """An admin client; open it with `open`, close it with `close`."""

    def __init__(self, cluster: Cluster, config: ClientConfig, *, owns_cluster: bool) -> None:
        super().__init__(cluster, config.default_api_timeout_ms)
        self._config = config
        self._owns_cluster = owns_cluster

    @classmethod
    async def open(cls, config: ClientConfig, *, cluster: Cluster | None = None) -> Admin:
        """Connect to the cluster, or use `cluster` if set. Raises TimedOutError if no bootstrap server responds."""
        owns = cluster is None
        return cls(cluster or await Cluster.open(config), config, owns_cluster=owns)

    async def close(self) -> None:
        """Close the connections, unless the caller passed `cluster` to `open`."""
        if self._owns_cluster:
            await self.cluster.close()

    # -- topics ------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, BrokerError | None]:
        """Create topics; return {name: None or the error}."""
        message = CreateTopicsRequest(
            topics=[_to_creatable_topic(topic) for topic in topics],
            timeout_ms=self._config.request_timeout_ms,
            validate_only=validate_only,
        )
        response = await self._retry(lambda: self.cluster.request_controller(message), "creating topics")
        return {
            topic.name: error_or_none(topic.error_code, f"topic {topic.name}", topic.error_message)
            for topic in response.topics
        }

    async def delete_topics(self, names: Iterable[str]) -> dict[str, BrokerError | None]:
        """Delete topics; return {name: None or the error}."""
        wanted = list(names)
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=self._config.request_timeout_ms,
        )
        by_name = DeleteTopicsRequest(topic_names=wanted, timeout_ms=self._config.request_timeout_ms)

        async def attempt() -> dict[str, BrokerError | None]:
            connection = await self._controller_connection()
            version = connection.version_for(DeleteTopicsRequest)
            response = await connection.request(message if version >= 6 else by_name, version=version)
            return {
                topic.name or "": error_or_none(topic.error_code, f"topic {topic.name}", topic.error_message)
                for topic in response.responses
            }

        return await self._retry(attempt, "deleting topics")

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the sorted names of all topics. Internal topics are included only if `include_internal` is set."""
        view = await self._metadata(None)
        return sorted(name for name, topic in view.topics.items() if include_internal or not topic.is_internal)

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView | BrokerError]:
        """Return the partitions, leaders and replicas of these topics (None = all topics)."""
        wanted = None if names is None else list(names)
        view = await self._metadata(wanted)
        described: dict[str, TopicView | BrokerError] = {}
        for name in sorted(view.topics.keys() | view.errors.keys()) if wanted is None else wanted:
            code = view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            described[name] = view.topics.get(name) or BrokerError(code, f"topic {name}")
        return described

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> dict[str, BrokerError | None]:
        """Increase each topic's number of partitions to its count in `counts`; return {topic: None or the error}."""
        topics = []
        for name, count in counts.items():
            chosen = (assignments or {}).get(name)
            replicas = (
                None if chosen is None else [CreatePartitionsAssignment(broker_ids=list(item)) for item in chosen]
            )
            topics.append(CreatePartitionsTopic(name=name, count=count, assignments=replicas))
        message = CreatePartitionsRequest(
            topics=topics, timeout_ms=self._config.request_timeout_ms, validate_only=validate_only
        )
        response = await self._retry(lambda: self.cluster.request_controller(message), "adding partitions")
        return {
            result.name: error_or_none(result.error_code, f"topic {result.name}", result.error_message)
            for result in response.results
        }

    # -- configurations ----------------------------------------------------------------------------------------------

    async def describe_configs(
        self, resources: Mapping[Resource, Sequence[str] | None] | Iterable[Resource], *, documentation: bool = False
    ) -> dict[Resource, list[DescribeConfigsResourceResult] | BrokerError]:
        """Return the configuration of topics and brokers.

        `resources` maps each resource to the keys to return (None = all).
        """
        wanted = dict(resources) if isinstance(resources, Mapping) else dict.fromkeys(resources)
        found: dict[Resource, list[DescribeConfigsResourceResult] | BrokerError] = {}
        for node_id, group in self._by_node(wanted).items():
            message = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=_list_or_none(wanted[kind, name])
                    )
                    for kind, name in group
                ],
                include_synonyms=True,
                include_documentation=documentation,
            )
            response = await self._request_node(node_id, message, "describing configurations")
            for result in response.results:
                subject = f"configuration of {result.resource_name}"
                error = error_or_none(result.error_code, subject, result.error_message)
                found[result.resource_type, result.resource_name] = error or result.configs
        return found

    async def incremental_alter_configs(
        self,
        changes: Mapping[Resource, Iterable[tuple[str, int, str | None]]],
        *,
        validate_only: bool = False,
    ) -> dict[Resource, BrokerError | None]:
        """Change individual configuration keys. A change is (key, SET | DELETE | APPEND | SUBTRACT, value)."""
        wanted = {resource: list(operations) for resource, operations in changes.items()}
        done: dict[Resource, BrokerError | None] = {}
        is_for_controllers = self.cluster.endpoint_type != Cluster.endpoint_type
        for node_id, group in ({None: list(wanted)} if is_for_controllers else self._by_node(wanted)).items():
            message = IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[
                            AlterableConfig(name=key, config_operation=operation, value=value)
                            for key, operation, value in wanted[kind, name]
                        ],
                    )
                    for kind, name in group
                ],
                validate_only=validate_only,
            )
            response = await self._request_node(node_id, message, "altering configurations")
            for result in response.responses:
                subject = f"configuration of {result.resource_name}"
                error = error_or_none(result.error_code, subject, result.error_message)
                done[result.resource_type, result.resource_name] = error
        return done

    def _by_node(self, resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
        """Group the resources by the id of the node to query.

        A broker resource is under the broker's id. All other resources are under None, which means any node.
        """
        grouped: dict[int | None, list[Resource]] = {}
        for kind, name in resources:
            own = int(name) if kind == BROKER and name.isdigit() else None
            grouped.setdefault(own, []).append((kind, name))
        return grouped

    # -- records and offsets -----------------------------------------------------------------------------------------

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """Return, for each partition, the offset of the first record at or after the partition's timestamp.

        A timestamp can also be `offsets.EARLIEST`, `LATEST` or `MAX_TIMESTAMP`. With `read_committed`, no returned
        offset is above the last stable offset.
        """
        return await offsets.list_offsets(
            self.cluster, timestamps, read_committed=read_committed, timeout_ms=self._timeout_ms
        )

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | BrokerError]:
        """Delete the records before these offsets (-1 = all); return {partition: new log start offset or the error}."""
        done: dict[TopicPartition, int | BrokerError] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for topic, partition in before:
            leader = await self.cluster.leader(topic, partition, self._timeout_ms)
            by_leader.setdefault(leader.leader_id, []).append((topic, partition))
        for leader_id, partitions in by_leader.items():
            topics: dict[str, DeleteRecordsTopic] = {}
            for topic, partition in partitions:
                topics.setdefault(topic, DeleteRecordsTopic(name=topic)).partitions.append(
                    DeleteRecordsPartition(partition_index=partition, offset=before[topic, partition])
                )
            message = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self._config.request_timeout_ms)
            response = await self._request_node(leader_id, message, "deleting records")
            for topic_result in response.topics:
                for part in topic_result.partitions:
                    error = error_or_none(part.error_code, f"{topic_result.name}-{part.partition_index}", None)
                    done[topic_result.name, part.partition_index] = error or part.low_watermark
        return done

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the brokers and the controller's id. With `include_fenced` (Kafka 4.0+), include fenced brokers."""
        request = DescribeClusterRequest(
            endpoint_type=self.cluster.endpoint_type, include_fenced_brokers=include_fenced
        )

        async def attempt() -> ClusterDescription:
            connection = await self.cluster.any_connection()
            if ApiKey.DESCRIBE_CLUSTER not in connection.versions:  # before Kafka 2.8
                view = ClusterView().updated(await self.cluster.fetch_metadata([]), requested=[])
                return ClusterDescription(view.cluster_id, view.controller_id, tuple(view.nodes.values()))
            response = await connection.request(request)
            if response.error_code != ErrorCode.NONE:
                raise BrokerError(response.error_code, "the cluster", response.error_message)
            nodes = tuple(Node(item.broker_id, item.host, item.port, item.rack) for item in response.brokers)
            fenced = frozenset(item.broker_id for item in response.brokers if item.is_fenced)
            return ClusterDescription(response.cluster_id, response.controller_id, nodes, fenced)

        return await self._retry(attempt, "describing the cluster")

    async def api_versions(self, node_id: int) -> dict[int, tuple[int, int]]:
        """Return {API key: (lowest version, highest version)} of one broker. Raises ConnectionLostError."""
        return dict((await self.cluster.connection(node_id)).versions)

    async def _metadata(self, names: Sequence[str] | None) -> ClusterView:
        async def attempt() -> ClusterView:
            response = await self.cluster.fetch_metadata(names)
            if response.error_code != ErrorCode.NONE:
                raise BrokerError(response.error_code, "cannot fetch the cluster metadata")
            return ClusterView().updated(response, requested=names)

        return await self._retry(attempt, "metadata")

    async def _controller_connection(self) -> BrokerConnection:
        view = self.cluster.view
        if view.controller_id in view.nodes:
            return await self.cluster.connection(view.controller_id)
        return await self.cluster.any_connection()


def _to_creatable_topic(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.num_partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(replicas))
            for partition, replicas in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _list_or_none(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
