"""ListPartitionReassignments (46): list the reassignments in progress, from the metadata image."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS
VERSIONS = (0, 0)
LISTENERS = BROKER_AND_CONTROLLER


def handle(
    context: RequestContext, request: ListPartitionReassignmentsRequest, version: int
) -> ListPartitionReassignmentsResponse:
    """List the requested partitions that have `adding_replicas` or `removing_replicas`.

    Without a topic list, list such partitions of all topics.
    """
    image = context.image
    wanted = None if request.topics is None else {item.name: set(item.partition_indexes) for item in request.topics}
    topics: list[OngoingTopicReassignment] = []
    for name, topic in image.topics.items():
        if wanted is not None and name not in wanted:
            continue
        moving = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for index, partition in enumerate(topic.partitions)
            if (partition.adding_replicas or partition.removing_replicas) and (wanted is None or index in wanted[name])
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
