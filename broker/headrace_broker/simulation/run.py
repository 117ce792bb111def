"""One run of a seed: a cluster, clients, faults, and the question whether everything is as it was promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.nemesis import Nemesis
from headrace_broker.simulation.topics import UNCLEAN
from headrace_broker.simulation.workload import Workload
from headrace_broker.simulation.world import Violation, World

TORMENT_S = 4.5
RECOVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to; equal for two runs of one seed."""

    seed: int
    records: int
    simulated_ms: int
    callbacks: int
    digest: int


def run_seed(
    seed: int,
    *,
    faults: tuple[str, ...] = (),
    topics: tuple[str, ...] = (),
    torment_s: float = TORMENT_S,
    verbose: bool = False,
    prepare: Callable[[World], None] = lambda world: None,
) -> Summary:
    """Run one seed, with just these faults or topics if any are named.

    Raises Violation; its notes tell what had happened.
    """
    world = World(seed, observers=Random(f"{seed} nodes").choice((0, 0, 0, 1)))
    world.verbose = verbose
    prepare(world)
    invariants = Invariants(world)
    workload = Workload(world, invariants, only_topics=topics)

    async def live() -> None:
        for machine in world.machines.values():
            world.boot(machine)
        await world.until(
            lambda: all(machine.is_serving for machine in world.machines.values()), 10.0, lambda: "the cluster starts"
        )
        await workload.begin()
        await Nemesis(world, only=faults).torment(torment_s)
        await world.until(lambda: _is_whole(world), RECOVERY_S, lambda: f"the cluster is whole: {_state(world)}")
        await workload.end(RECOVERY_S)
        invariants.check_agreement(UNCLEAN)

    try:
        world.run(live())
    except Violation as violation:
        for line in world.events:
            violation.add_note(line)
        if not verbose:
            violation.__traceback__ = None  # it holds on to nodes, and the events say more
            world.bury()
        raise
    return Summary(
        seed,
        workload.history.records_sent,
        world.loop.now_us // 1000,
        world.loop.callbacks,
        world.network.digest ^ (world.loop.callbacks << 32),
    )


def _is_whole(world: World) -> bool:
    """Whether every machine serves and every replica is in sync, as every node knows."""
    machines = world.machines.values()
    if not all(machine.is_serving for machine in machines):
        return False
    images = [node.image for _, node in world.nodes()]
    return all(image.offset == images[0].offset for image in images) and all(
        len(partition.isr) == len(partition.replicas) and partition.leader >= 0
        for topic in images[0].topics.values()
        for partition in topic.partitions
    )


def _state(world: World) -> str:
    parts = [
        f"{machine.name} {'serves' if machine.is_serving else 'is up' if machine.is_up else 'is down'}"
        for machine in world.machines.values()
    ]
    for machine, node in world.nodes():
        raft = node.quorum.raft
        parts.append(
            f"{machine.name}: {type(raft.role).__name__} of {raft.epoch}, committed {raft.high_watermark} "
            f"of {raft.log.log_end_offset}"
        )
    for topic in world.image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if len(partition.isr) < len(partition.replicas) or partition.leader < 0:
                parts.append(
                    f"{topic.name}-{index}: leader {partition.leader}, isr {partition.isr}, "
                    f"elr {partition.eligible_leader_replicas}"
                )
    return "; ".join(parts)
