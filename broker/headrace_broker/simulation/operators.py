"""What operators do to a cluster while it is at work, and while things go wrong: moves, and configs that change.

Kinds of fault like those of `nemesis`, drawn together with them; clients do what else operators may ask for
(`workload`).
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
from headrace_broker.simulation.world import World

if TYPE_CHECKING:
    from headrace_broker.simulation.nemesis import Fault, Nemesis

_TOPIC = "t"
_MIN_INSYNC_REPLICAS = "min.insync.replicas"


async def reassign(nemesis: Nemesis) -> None:
    """A partition of any topic goes to other brokers, or its move is taken back."""
    world, rng = nemesis.world, nemesis.rng
    if not world.image.topics:
        return
    topic = world.image.topics[rng.choice(sorted(world.image.topics))]
    index = rng.randrange(len(topic.partitions))
    brokers = sorted(world.image.brokers)
    target = None if rng.random() < 0.2 else rng.sample(brokers, rng.randint(2, min(3, len(brokers))))
    wanted = ReassignablePartition(partition_index=index, replicas=target)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic.name, partitions=[wanted])])
    _ask(world, f"{topic.name}-{index} is to move to {target}", lambda active: active.alter_reassignments(request))


async def change_min_insync(nemesis: Nemesis) -> None:
    """min.insync.replicas of the writers' topic is set, to one or to two."""
    value = nemesis.rng.choice(("1", "2"))
    resources = [(TOPIC_RESOURCE, _TOPIC, {_MIN_INSYNC_REPLICAS: value})]
    _ask(
        nemesis.world,
        f"{_MIN_INSYNC_REPLICAS} of {_TOPIC} is to be {value}",
        lambda active: active.alter_configs(resources, validate_only=False),
    )


def _ask(world: World, what: str, change: Callable[[ControllerService], Awaitable[object]]) -> None:
    """Have the active controller, if there is one, make the change."""

    async def attempt(active: ControllerService) -> None:
        try:
            await change(active)
        except ApiError:
            pass  # it is no controller any more

    for machine, node in list(world.nodes()):
        if machine.process is not None and node.controller is not None and node.controller.is_active:
            world.say(what)
            world.within(machine, attempt(node.controller))


CHANGES: dict[str, Fault] = {change.__name__: change for change in (reassign, change_min_insync)}
