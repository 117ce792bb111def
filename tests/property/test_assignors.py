"""Simulates a group of workers under random events, which are generated from a seed.

Each worker runs GroupCore with the real messages of the group protocol. The test simulates the group coordinator, the
config topic, and the worker's connectors and tasks, which take time to stop. `HERDER_SEED=n pytest
tests/property/test_assignors.py` replays seed n. Seeds from 10,000 on belong to the slow test.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from headrace.herder import group_core
from headrace.herder.assignment import EMPTY, Assignment, configured, duplicates, union
from headrace.herder.group_core import GroupCore, GroupEffect
from headrace.herder.group_protocol import NO_ERROR, Version, decode_assignment, decode_metadata, protocols
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    DeleteConnector,
    PutConnector,
    PutTaskConfigs,
)

SEEDS = [int(os.environ["HERDER_SEED"])] if "HERDER_SEED" in os.environ else range(150)
CONNECTORS = ["a", "b", "c", "d"]
WORKERS_MAX, TASKS_MAX = 6, 7
REBALANCES_MAX = 60  # until the group is balanced
Instance: TypeAlias = tuple[str, int | None]
"""A connector (None) or a task."""


def instances_of(assignment: Assignment) -> set[Instance]:
    return {(name, None) for name in assignment.connectors} | set(assignment.tasks)


@dataclass(eq=False)
class Worker:
    """One worker process, with its running connectors and tasks and its pending operations."""

    name: str
    core: GroupCore
    member_id: str | None = None
    to_run: Assignment = EMPTY
    running: set[Instance] = field(default_factory=set)
    """Running or stopping; what is not in `to_run` stops at a later step."""
    reports: list[Assignment] = field(default_factory=list)
    rejoins: bool = False
    rejoin_ms: int | None = None


class Simulation:
    """A coordinator, its workers, and the config topic."""

    def __init__(self, seed: int, *, max_delay_ms: int, versions: Sequence[Version]) -> None:
        self.random = random.Random(seed)
        self.max_delay_ms = max_delay_ms
        self.versions = versions
        """Each worker offers one of these versions and those below it."""
        self.now_ms = 0
        self.generation = 0
        self.number = 0
        self.snapshot = ConfigSnapshot()
        self.workers: list[Worker] = []
        self.leader: Worker | None = None
        self.needs_rebalance = False
        self.may_run_twice: set[Instance] = set()
        """What a worker that is not a member has been assigned: another worker may run it at the same time."""

    # The worker: its effects, and its connectors and tasks

    def carry_out(self, worker: Worker, effects: Sequence[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case group_core.Run(assignment):
                    worker.to_run = assignment
                    self.start(worker)
                case group_core.AwaitStop(assignment):
                    self.stop_now(worker, instances_of(assignment))
                case group_core.ReportStop(assignment):
                    worker.reports.append(assignment)
                case group_core.ReadConfigs():
                    self.read_configs(worker)
                case group_core.Rejoin(_, 0):
                    worker.rejoins = True
                case group_core.Rejoin(_, delay_ms):
                    worker.rejoin_ms = self.now_ms + delay_ms

    def read_configs(self, worker: Worker) -> None:
        self.carry_out(worker, worker.core.on_snapshot(self.snapshot))
        self.start(worker)

    def start(self, worker: Worker) -> None:
        worker.running |= self.wanted(worker)
        self.check_running()

    def wanted(self, worker: Worker) -> set[Instance]:
        """Return the connectors and tasks that the worker must run now.

        Deleted connectors are not included, even if the leader has not revoked them yet.
        """
        return instances_of(worker.to_run & worker.core._configured)

    def stop_now(self, worker: Worker, stopped: set[Instance]) -> None:
        worker.running -= stopped - self.wanted(worker)
        for report in [each for each in worker.reports if instances_of(each).isdisjoint(worker.running)]:
            worker.reports.remove(report)
            self.carry_out(worker, worker.core.stopped(report))

    def stop_some(self, worker: Worker, share: float) -> None:
        stopping = sorted(worker.running - self.wanted(worker), key=repr)
        self.stop_now(worker, {each for each in stopping if self.random.random() < share})

    def check_running(self) -> None:
        """Check that no two members run the same connector or task.

        A worker that was removed from the group may still run its connectors and tasks. Until it has stopped them,
        another worker may run the same connectors and tasks.
        """
        counts = Counter(each for worker in self.workers for each in worker.running)
        twice = {each for each, count in counts.items() if count > 1}
        claims = {worker: worker.running | instances_of(worker.core.assignment) for worker in self.workers}
        self.may_run_twice |= {each for worker in self.workers if worker.member_id is None for each in claims[worker]}
        assert twice <= self.may_run_twice, f"two members run {twice - self.may_run_twice}"
        self.may_run_twice &= set().union(*claims.values())

    # The coordinator

    def members(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.member_id is not None]

    def join(self, worker: Worker) -> None:
        self.number += 1
        worker.member_id = f"{worker.name}-{self.number}"
        self.needs_rebalance = True

    def rebalance(self, miss: float = 0.0) -> None:
        """Let all members join. Each member fails to receive its assignment with probability `miss`."""
        members = self.members()
        self.needs_rebalance = False
        for worker in members:
            worker.rejoins = False
            self.carry_out(worker, worker.core.on_join_prepare())
        if not members:
            return
        self.generation += 1
        version = min(worker.core.highest for worker in members)
        if version is Version.EAGER:
            # With the downgraded protocol, workers stop and start connectors and tasks at the same time.
            cooperative = [worker for worker in members if worker.core.version is not Version.EAGER]
            self.may_run_twice |= {each for worker in cooperative for each in worker.running}
        protocol = version.protocol
        chosen = {
            str(worker.member_id): dict(protocols(worker.core.metadata(), worker.core.highest))[protocol]
            for worker in members
        }
        if self.leader not in members:
            self.leader = self.random.choice(members)
        leader = self.leader
        assert leader is not None
        if leader.core.is_behind(chosen) and self.random.random() < 0.8:
            self.read_configs(leader)
        assignments = leader.core.compute_assignments(
            self.generation, protocol, str(leader.member_id), chosen, self.now_ms
        )
        self.check_assignments(chosen, assignments, version)
        if miss and self.random.random() < 0.3:
            for worker in members:  # a stop may complete while the group synchronizes
                self.stop_some(worker, 0.3)
        self.random.shuffle(members)
        for worker in members:
            if self.random.random() < miss:
                self.needs_rebalance = True
                continue
            worker.rejoin_ms = None
            self.carry_out(
                worker,
                worker.core.on_assignment(
                    self.generation, protocol, assignments[str(worker.member_id)], str(worker.member_id)
                ),
            )

    def check_assignments(self, metadata: dict[str, bytes], assignments: dict[str, bytes], version: Version) -> None:
        found = {member: decode_assignment(data) for member, data in assignments.items()}
        assert found.keys() == metadata.keys()
        assert not duplicates(each.assigned for each in found.values())
        if version is Version.EAGER or any(each.error != NO_ERROR for each in found.values()):
            return
        reported = {member: decode_metadata(data).held for member, data in metadata.items()}
        held = {member: EMPTY if each is None else each.assigned for member, each in reported.items()}
        for each in found.values():
            assert not each.assigned & union(held.values()), "assigns what a member still holds"
            assert not each.assigned & each.revoked

    # Events

    def add_worker(self) -> None:
        if len(self.workers) < WORKERS_MAX:
            self.number += 1
            name = f"w{self.number}"
            worker = Worker(name, GroupCore(f"http://{name}/", self.random.choice(self.versions), self.max_delay_ms))
            self.workers.append(worker)
            self.read_configs(worker)
            worker.rejoins = False
            self.join(worker)

    def crash(self) -> None:
        if len(self.workers) > 1:
            self.workers.remove(self.random.choice(self.workers))
            self.needs_rebalance = True
            self.check_running()

    def lose_membership(self) -> None:
        """Let the coordinator remove a member that is still running."""
        if members := self.members():
            self.random.choice(members).member_id = None
            self.needs_rebalance = True

    def notice_loss(self) -> None:
        """Stop the connectors and tasks of all workers that are not members of the group.

        Then let these workers join the group again.
        """
        for worker in [each for each in self.workers if each.member_id is None]:
            self.carry_out(worker, worker.core.on_membership_lost())
            self.join(worker)

    def return_with_work(self) -> None:
        """Let all workers that are not members of the group join the group again.

        The connectors and tasks of these workers continue to run.
        """
        for worker in [each for each in self.workers if each.member_id is None]:
            self.join(worker)

    def change_leader(self) -> None:
        if members := self.members():
            self.leader = self.random.choice(members)
            self.needs_rebalance = True

    def change_configs(self) -> None:
        name = self.random.choice(CONNECTORS)
        changes: list[ConfigChange] = [DeleteConnector(name)]
        if name not in self.snapshot.connectors or self.random.random() < 0.7:
            count = self.random.randrange(TASKS_MAX + 1)
            changes = [PutConnector(name, {}), PutTaskConfigs(name, [{}] * count)]
        for change in changes:
            self.snapshot = self.snapshot.apply(self.snapshot.offset + 1, change)

    def read_some_configs(self) -> None:
        for worker in self.workers:
            if self.random.random() < 0.5:
                self.read_configs(worker)

    def stop_instances(self) -> None:
        for worker in self.workers:
            self.stop_some(worker, 0.5)

    def rebalance_if_needed(self, miss: float = 0.0) -> None:
        if self.needs_rebalance or any(worker.rejoins for worker in self.members()):
            self.rebalance(miss)

    def pass_time(self) -> None:
        self.advance(self.random.choice([1, 40, 1_000, self.max_delay_ms // 2, self.max_delay_ms]))

    def advance(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        for worker in self.workers:
            if worker.rejoin_ms is not None and worker.rejoin_ms <= self.now_ms:
                worker.rejoin_ms, worker.rejoins = None, True

    def run(self, steps: int) -> None:
        events: list[tuple[Callable[[], None], int]] = [
            (self.add_worker, 3),
            (self.crash, 2),
            (self.lose_membership, 2),
            (self.notice_loss, 2),
            (self.return_with_work, 1),
            (self.change_leader, 1),
            (self.change_configs, 3),
            (self.read_some_configs, 4),
            (self.stop_instances, 6),
            (self.rebalance_if_needed, 8),
            (lambda: self.rebalance_if_needed(0.3), 3),
            (self.rebalance, 1),
            (self.pass_time, 4),
        ]
        self.add_worker()
        for event in self.random.choices([each for each, _ in events], [weight for _, weight in events], k=steps):
            event()

    # The end

    def run_until_stable(self) -> int:
        """Complete all events. Return the number of rebalances that were necessary until the group was idle."""
        self.notice_loss()
        for number in range(REBALANCES_MAX):
            for worker in self.workers:
                self.read_configs(worker)
                self.stop_some(worker, 1.0)
            if not self.needs_rebalance and not any(worker.rejoins for worker in self.workers):
                due = [worker.rejoin_ms for worker in self.workers if worker.rejoin_ms is not None]
                if not due:
                    return number
                self.advance(max(min(due) - self.now_ms, 0))
            self.rebalance_if_needed()
        raise AssertionError(f"the group still rebalances after {REBALANCES_MAX} rebalances")

    def check_balanced(self) -> None:
        wanted = instances_of(configured(self.snapshot))
        running = Counter(each for worker in self.workers for each in worker.running)
        assert running == Counter(wanted), "not every connector and task runs exactly once"
        for is_task in (False, True):
            counts = [sum((each[1] is not None) is is_task for each in worker.running) for worker in self.workers]
            assert max(counts) - min(counts) <= 1, f"not balanced: {counts}"
        for worker in self.workers:
            assert instances_of(worker.core.assignment) == worker.running
            assert worker.core.leader_url == self.workers[0].core.leader_url
            assert worker.core.is_leader is (worker is self.leader)
        leader = self.leader
        assert leader is not None
        for worker in self.workers:
            assert {leader.core.owner_url(*each) for each in worker.running} <= {worker.core.url}


def run_seed(seed: int, steps: int) -> None:
    choices = random.Random(seed)
    simulation = Simulation(
        seed,
        max_delay_ms=choices.choice([0, 1, 1_000, 300_000, 300_000]),
        versions=choices.choice([[Version.SESSIONED], [Version.SESSIONED], [Version.EAGER], list(Version)]),
    )
    try:
        simulation.run(steps)
        simulation.run_until_stable()
        simulation.check_balanced()
        simulation.rebalance()  # a rebalance of a balanced group changes nothing
        assert simulation.run_until_stable() == 0
        simulation.check_balanced()
    except Exception as error:
        raise AssertionError(f"HERDER_SEED={seed}: {error!r}") from error


@pytest.mark.parametrize("seed", SEEDS)
def test_worker_group_keeps_its_invariants_under_random_events(seed: int) -> None:
    run_seed(seed, steps=80 if seed < 10_000 else 200)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 12_000, 250))
def test_worker_group_keeps_its_invariants_when_random_events_occur(first: int) -> None:
    for seed in range(first, first + 250):
        run_seed(seed, steps=200)
