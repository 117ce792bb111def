"""Runs the simulation of one seed: starts a cluster and clients, injects faults, and checks the guarantees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace_broker.simulation.fault_injector import FaultInjector
from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.simulated_cluster import SimulatedCluster, Violation
from headrace_broker.simulation.topics import UNCLEAN
from headrace_broker.simulation.workload import Workload

FAULTS_S = 4.5
RECOVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run. Two runs of the same seed have equal results."""

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
    torment_s: float = FAULTS_S,
    verbose: bool = False,
    prepare: Callable[[SimulatedCluster], None] = lambda cluster: None,
) -> Summary:
    """Run the simulation of one seed.

    If `faults` is not empty, only these kinds of fault occur. If `topics` is not empty, the run has only these topics
    and the topic that keeps all records. Faults are injected for `torment_s` seconds. `prepare` is called with the
    cluster before the cluster starts. With `verbose`, all events and the nodes' logs are printed. Raises Violation if a
    guarantee is violated. The notes of this exception list the events of the run.
    """
    cluster = SimulatedCluster(seed, observers=Random(f"{seed} nodes").choice((0, 0, 0, 1)))
    cluster.verbose = verbose
    prepare(cluster)
    invariants = Invariants(cluster)
    workload = Workload(cluster, invariants, only_topics=topics)

    async def scenario() -> None:
        for machine in cluster.machines.values():
            cluster.boot(machine)
        await cluster.wait_until(
            lambda: all(machine.is_serving for machine in cluster.machines.values()), 10.0, lambda: "all nodes serve"
        )
        await workload.start_clients()
        await FaultInjector(cluster, only=faults).inject_faults(torment_s)
        await cluster.wait_until(
            lambda: _is_fully_replicated(cluster),
            RECOVERY_S,
            lambda: f"all partitions are fully replicated: {_describe_state(cluster)}",
        )
        await workload.stop_and_check(RECOVERY_S)
        invariants.check_replicas_agree(UNCLEAN)

    try:
        cluster.run(scenario())
    except Violation as violation:
        for line in cluster.events:
            violation.add_note(line)
        if not verbose:
            violation.__traceback__ = None  # the traceback would prevent the garbage collection of the nodes
            cluster.collect_garbage()
        raise
    return Summary(
        seed,
        workload.history.records_sent,
        cluster.loop.now_us // 1000,
        cluster.loop.callbacks,
        cluster.network.digest ^ (cluster.loop.callbacks << 32),
    )


def _is_fully_replicated(cluster: SimulatedCluster) -> bool:
    """Return whether all nodes are serving, their metadata images are equal, and all replicas are in sync."""
    machines = cluster.machines.values()
    if not all(machine.is_serving for machine in machines):
        return False
    images = [node.image for _, node in cluster.nodes()]
    return all(image.offset == images[0].offset for image in images) and all(
        len(partition.isr) == len(partition.replicas) and partition.leader >= 0
        for topic in images[0].topics.values()
        for partition in topic.partitions
    )


def _describe_state(cluster: SimulatedCluster) -> str:
    parts = [
        f"{machine.name} {'serves' if machine.is_serving else 'is up' if machine.is_up else 'is down'}"
        for machine in cluster.machines.values()
    ]
    for machine, node in cluster.nodes():
        raft = node.quorum.raft
        parts.append(
            f"{machine.name}: {type(raft.role).__name__} of {raft.epoch}, committed {raft.high_watermark} "
            f"of {raft.log.log_end_offset}"
        )
    for topic in cluster.image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if len(partition.isr) < len(partition.replicas) or partition.leader < 0:
                parts.append(
                    f"{topic.name}-{index}: leader {partition.leader}, isr {partition.isr}, "
                    f"elr {partition.eligible_leader_replicas}"
                )
    return "; ".join(parts)
