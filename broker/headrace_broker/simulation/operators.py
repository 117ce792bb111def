"""Makes administrative changes during a run: partition reassignments and config changes.

`FaultInjector` chooses and runs these changes in the same way as faults. The admin client in `workload` sends all other
administrative requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace_broker.metadata.image import TOPIC_RESOURCE
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.server.controller import ControllerService
from headrace_broker.simulation.simulated_cluster import SimulatedCluster

if TYPE_CHECKING:
    from headrace_broker.simulation.fault_injector import Fault, FaultInjector

_TOPIC = "t"
_MIN_INSYNC_REPLICAS = "min.insync.replicas"


async def reassign(injector: FaultInjector) -> None:
    """Reassign a random partition to random brokers, or cancel the partition's reassignment."""
    cluster, rng = injector.cluster, injector.rng
    if not cluster.image.topics:
        return
    topic = cluster.image.topics[rng.choice(sorted(cluster.image.topics))]
    index = rng.randrange(len(topic.partitions))
    brokers = sorted(cluster.image.brokers)
    target = None if rng.random() < 0.2 else rng.sample(brokers, rng.randint(2, min(3, len(brokers))))
    partition = ReassignablePartition(partition_index=index, replicas=target)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic.name, partitions=[partition])])
    _request_change(
        cluster, f"{topic.name}-{index}: reassign to {target}", lambda active: active.alter_reassignments(request)
    )


async def change_min_insync(injector: FaultInjector) -> None:
    """Set the config min.insync.replicas to 1 or 2 for the topic that keeps all records."""
    value = injector.rng.choice(("1", "2"))
    resources = [(TOPIC_RESOURCE, _TOPIC, [(_MIN_INSYNC_REPLICAS, 0, value)])]
    _request_change(
        injector.cluster,
        f"{_TOPIC}: set {_MIN_INSYNC_REPLICAS}={value}",
        lambda active: active.alter_configs(resources, validate_only=False),
    )


def _request_change(
    cluster: SimulatedCluster, description: str, change: Callable[[ControllerService], Awaitable[object]]
) -> None:
    """Request the change from the active controller, if the cluster has an active controller.

    `description` describes the change in the events of the run.
    """

    async def attempt(active: ControllerService) -> None:
        try:
            await change(active)
        except ApiError:
            pass  # the node is no longer the active controller

    for machine, node in list(cluster.nodes()):
        if machine.process is not None and node.controller is not None and node.controller.is_active:
            cluster.log_event(description)
            cluster.run_on_machine(machine, attempt(node.controller))


ADMIN_CHANGES: dict[str, Fault] = {change.__name__: change for change in (reassign, change_min_insync)}
