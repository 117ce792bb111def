"""Tests of the assignors: the scenarios of Kafka Connect's IncrementalCooperativeAssignorTest, and eager assignments.

A scenario is a sequence of rebalances. Each entry lists the changes before a rebalance and the expected numbers of
connectors and tasks per worker after the rebalance, in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from headrace.herder.assignment import EMPTY, Assignment, TaskId, configured, duplicates, union
from headrace.herder.assignors import GroupPlan, IncrementalAssignor, assign_round_robin
from headrace.stores.config_store import ConfigSnapshot, ConnectorState, TargetState

DELAY = 300_000  # the default of scheduled.rebalance.max.delay.ms
TWO = {"connector1": 4, "connector2": 4}
THREE = {**TWO, "connector3": 4}


def connectors_and_tasks(task_counts: Mapping[str, int]) -> Assignment:
    tasks = ((name, number) for name, count in task_counts.items() for number in range(count))
    return Assignment(frozenset(task_counts), frozenset(tasks))


def connector(name: str, tasks: int) -> Assignment:
    return connectors_and_tasks({name: tasks})


@dataclass(frozen=True)
class Rebalance:
    """The events before a rebalance, and the expected result of the rebalance."""

    connectors: Sequence[int]
    tasks: Sequence[int]
    delay: int = 0
    revokes: bool = False
    assigns: bool = True
    join: Sequence[str] = ()
    join_with: Mapping[str, Assignment] = field(default_factory=dict)
    leave: Sequence[str] = ()
    create: Mapping[str, int] = field(default_factory=dict)
    delete: Sequence[str] = ()
    wait: int = 0
    new_leader: bool = False
    leader_missed_sync: bool = False
    """The leader did not complete the previous generation."""
    sync_fails: bool = False
    """No worker receives the assignments."""


class Group:
    """A group of workers that apply the leader's assignments immediately."""

    def __init__(self, task_counts: Mapping[str, int], max_delay_ms: int = DELAY) -> None:
        self.task_counts = dict(task_counts)
        self.held: dict[str, Assignment] = {"worker1": EMPTY}
        self.now_ms = 1_000
        self.generation = 0
        self._max_delay_ms = max_delay_ms
        self.elect_leader()

    def elect_leader(self) -> None:
        self._assignor = IncrementalAssignor(self._max_delay_ms)

    def join(self, *workers: str, held: Assignment = EMPTY) -> None:
        assert self.held.keys().isdisjoint(workers)
        self.held |= dict.fromkeys(workers, held)

    def leave(self, worker: str) -> None:
        del self.held[worker]

    def rebalance(self, *, sync_fails: bool = False, leader_missed_sync: bool = False) -> GroupPlan:
        self.generation += 1
        last = self.generation - (2 if leader_missed_sync else 1)
        plan = self._assignor.assign(
            connectors_and_tasks(self.task_counts),
            dict(self.held),
            last_generation=last if last else -1,
            generation=self.generation,
            now_ms=self.now_ms,
        )
        after = self.applied(plan)
        assert plan.owned == after
        if not sync_fails:
            self.held = after
        return plan

    def applied(self, plan: GroupPlan) -> dict[str, Assignment]:
        after = {}
        for worker, held in self.held.items():
            revoked, assigned = plan.revoked.get(worker, EMPTY), plan.assigned.get(worker, EMPTY)
            assert revoked == revoked & held, "revokes what the worker does not hold"
            assert not assigned & held, "assigns what the worker holds"
            others = union(each for other, each in self.held.items() if other != worker)
            assert not assigned & others, "assigns what another worker holds"
            after[worker] = (held - revoked) | assigned
        assert not duplicates(plan.assigned.values())
        return after

    def counts(self) -> tuple[list[int], list[int]]:
        held = self.held.values()
        return sorted(len(each.connectors) for each in held), sorted(len(each.tasks) for each in held)

    def assert_balanced(self) -> None:
        assert union(self.held.values()) == connectors_and_tasks(self.task_counts)
        assert not duplicates(self.held.values())
        for counts in self.counts():
            assert counts[-1] - counts[0] <= 1


TWO_WORKERS = Rebalance(join=["worker2"], connectors=[1, 1], tasks=[4, 4])
THREE_WORKERS = Rebalance(join=["worker2", "worker3"], connectors=[0, 1, 1], tasks=[2, 3, 3])
THREE_CONNECTORS = Rebalance(connectors=[3], tasks=[12])
SECOND_JOINS = Rebalance(join=["worker2"], connectors=[0, 2], tasks=[0, 6], revokes=True, assigns=False)
THIRD_JOINS = Rebalance(join=["worker3"], connectors=[0, 1, 2], tasks=[3, 3, 6], delay=40)
SECOND_LEAVES = Rebalance(leave=["worker2"], connectors=[1], tasks=[4], delay=DELAY, assigns=False)

SCENARIOS: dict[str, tuple[Mapping[str, int], int, list[Rebalance]]] = {
    "worker joins": (
        TWO,
        DELAY,
        [
            Rebalance(connectors=[2], tasks=[8]),
            Rebalance(join=["worker2"], connectors=[0, 1], tasks=[0, 4], revokes=True, assigns=False),
            Rebalance(connectors=[1, 1], tasks=[4, 4]),
            Rebalance(connectors=[1, 1], tasks=[4, 4], assigns=False),
        ],
    ),
    "workers join after revocations: successive revocations back off": (
        THREE,
        DELAY,
        [
            THREE_CONNECTORS,
            SECOND_JOINS,
            THIRD_JOINS,
            Rebalance(
                wait=40, join=["worker4"], connectors=[0, 0, 1, 1], tasks=[0, 3, 3, 3], revokes=True, assigns=False
            ),
            Rebalance(join=["worker5"], connectors=[0, 0, 1, 1, 1], tasks=[1, 2, 3, 3, 3], delay=1_600),
            Rebalance(
                wait=1_600,
                join=["worker6"],
                connectors=[0, 0, 0, 1, 1, 1],
                tasks=[0, 1, 2, 2, 2, 2],
                revokes=True,
                assigns=False,
            ),
            Rebalance(connectors=[0, 0, 0, 1, 1, 1], tasks=[2, 2, 2, 2, 2, 2]),
        ],
    ),
    "successive revocations are immediate if the maximum delay is 0": (
        THREE,
        0,
        [
            THREE_CONNECTORS,
            SECOND_JOINS,
            Rebalance(join=["worker3"], connectors=[0, 1, 1], tasks=[3, 3, 4], revokes=True),
            Rebalance(connectors=[1, 1, 1], tasks=[4, 4, 4]),
        ],
    ),
    "back-off does not exceed the maximum delay": (
        THREE,
        1,
        [
            THREE_CONNECTORS,
            SECOND_JOINS,
            Rebalance(join=["worker3"], connectors=[0, 1, 2], tasks=[3, 3, 6], delay=1),
        ],
    ),
    "worker joins during the back-off": (
        THREE,
        DELAY,
        [
            THREE_CONNECTORS,
            SECOND_JOINS,
            THIRD_JOINS,
            Rebalance(wait=20, join=["worker4"], connectors=[0, 0, 1, 2], tasks=[0, 3, 3, 6], delay=20, assigns=False),
            Rebalance(
                wait=20,
                join=["worker5"],
                connectors=[0, 0, 0, 1, 1],
                tasks=[0, 0, 2, 3, 3],
                revokes=True,
                assigns=False,
            ),
            Rebalance(connectors=[0, 0, 1, 1, 1], tasks=[2, 2, 2, 3, 3]),
        ],
    ),
    "second rebalance during the back-off ends it, as in Kafka Connect": (
        THREE,
        DELAY,
        [
            THREE_CONNECTORS,
            SECOND_JOINS,
            THIRD_JOINS,
            Rebalance(wait=10, connectors=[0, 1, 2], tasks=[3, 3, 6], delay=30, assigns=False),
            Rebalance(wait=10, connectors=[0, 1, 1], tasks=[3, 3, 4], revokes=True, assigns=False),
            Rebalance(connectors=[1, 1, 1], tasks=[4, 4, 4]),
        ],
    ),
    "worker leaves permanently": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(wait=DELAY // 2, connectors=[1], tasks=[4], delay=DELAY // 2, assigns=False),
            Rebalance(wait=DELAY // 2, connectors=[2], tasks=[8]),
        ],
    ),
    "worker returns within the delay": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(wait=DELAY // 2, connectors=[1], tasks=[4], delay=DELAY // 2, assigns=False),
            Rebalance(
                wait=DELAY // 4,
                join=["worker2"],
                connectors=[0, 1],
                tasks=[0, 4],
                delay=DELAY // 4,
                assigns=False,
            ),
            Rebalance(wait=DELAY // 4, connectors=[1, 1], tasks=[4, 4]),
        ],
    ),
    "worker returns after the delay": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(wait=DELAY, connectors=[2], tasks=[8]),
            Rebalance(join=["worker2"], connectors=[0, 1], tasks=[0, 4], revokes=True, assigns=False),
            Rebalance(connectors=[1, 1], tasks=[4, 4]),
        ],
    ),
    "worker returns within the delay and leaves again": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(
                wait=1_000, join=["worker2"], connectors=[0, 1], tasks=[0, 4], delay=DELAY - 1_000, assigns=False
            ),
            Rebalance(wait=DELAY, leave=["worker2"], connectors=[2], tasks=[8]),
        ],
    ),
    "leader leaves permanently": (
        TWO,
        DELAY,
        [
            THREE_WORKERS,
            Rebalance(leave=["worker1"], new_leader=True, connectors=[1, 1], tasks=[4, 4]),
            Rebalance(connectors=[1, 1], tasks=[4, 4], assigns=False),
        ],
    ),
    "leader returns": (
        TWO,
        DELAY,
        [
            THREE_WORKERS,
            Rebalance(leave=["worker1"], new_leader=True, connectors=[1, 1], tasks=[4, 4]),
            Rebalance(join=["worker1"], connectors=[0, 1, 1], tasks=[0, 3, 3], revokes=True, assigns=False),
            Rebalance(connectors=[0, 1, 1], tasks=[2, 3, 3]),
        ],
    ),
    "first assignments are not delivered": (
        TWO,
        DELAY,
        [
            Rebalance(join=["worker2"], sync_fails=True, connectors=[0, 0], tasks=[0, 0]),
            Rebalance(connectors=[1, 1], tasks=[4, 4]),
        ],
    ),
    "revocations are not delivered": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            Rebalance(
                join=["worker3"], sync_fails=True, connectors=[0, 1, 1], tasks=[0, 4, 4], revokes=True, assigns=False
            ),
            Rebalance(connectors=[0, 1, 1], tasks=[0, 4, 4], delay=40, assigns=False),
            Rebalance(wait=40, connectors=[0, 1, 1], tasks=[0, 3, 3], revokes=True, assigns=False),
            Rebalance(connectors=[0, 1, 1], tasks=[2, 3, 3]),
        ],
    ),
    "revocations are not delivered and the leader misses the generation": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            Rebalance(
                join=["worker3"], sync_fails=True, connectors=[0, 1, 1], tasks=[0, 4, 4], revokes=True, assigns=False
            ),
            Rebalance(leader_missed_sync=True, connectors=[0, 1, 1], tasks=[0, 4, 4], delay=40, assigns=False),
            Rebalance(wait=40, connectors=[0, 1, 1], tasks=[0, 3, 3], revokes=True, assigns=False),
            Rebalance(connectors=[0, 1, 1], tasks=[2, 3, 3]),
        ],
    ),
    "leader that misses a generation assigns lost work without a delay": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            Rebalance(leave=["worker2"], leader_missed_sync=True, connectors=[2], tasks=[8]),
        ],
    ),
    "connector is deleted": (
        THREE,
        DELAY,
        [
            Rebalance(join=["worker2"], connectors=[1, 2], tasks=[6, 6]),
            Rebalance(delete=["connector3"], connectors=[1, 1], tasks=[4, 4], revokes=True, assigns=False),
            Rebalance(connectors=[1, 1], tasks=[4, 4], assigns=False),
        ],
    ),
    "connector is deleted while the leader changes": (
        THREE,
        DELAY,
        [
            Rebalance(join=["worker2"], connectors=[1, 2], tasks=[6, 6]),
            Rebalance(
                delete=["connector3"], new_leader=True, connectors=[1, 1], tasks=[4, 4], revokes=True, assigns=False
            ),
            Rebalance(connectors=[1, 1], tasks=[4, 4], assigns=False),
        ],
    ),
    "connector of a departed worker is deleted during the delay": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(
                wait=1_000, delete=["connector1", "connector2"], connectors=[0], tasks=[0], revokes=True, assigns=False
            ),
            Rebalance(connectors=[0], tasks=[0], assigns=False),
        ],
    ),
    "connector is created during the delay": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            SECOND_LEAVES,
            Rebalance(wait=1_000, create={"connector3": 2}, connectors=[2], tasks=[6], delay=DELAY - 1_000),
            Rebalance(wait=DELAY, connectors=[3], tasks=[10]),
        ],
    ),
    "number of tasks decreases": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            Rebalance(create={"connector1": 2}, connectors=[1, 1], tasks=[3, 3], revokes=True, assigns=False),
            Rebalance(connectors=[1, 1], tasks=[3, 3], assigns=False),
        ],
    ),
    "number of tasks increases": (
        TWO,
        DELAY,
        [
            TWO_WORKERS,
            Rebalance(create={"connector1": 7}, connectors=[1, 1], tasks=[5, 6]),
        ],
    ),
    "worker leaves and the maximum delay is 0": (
        TWO,
        0,
        [TWO_WORKERS, Rebalance(leave=["worker2"], connectors=[2], tasks=[8])],
    ),
    "worker joins with connectors and tasks that another worker runs": (
        TWO,
        DELAY,
        [
            Rebalance(connectors=[2], tasks=[8]),
            Rebalance(
                join_with={"worker2": connector("connector1", 4)},
                connectors=[0, 1],
                tasks=[0, 4],
                revokes=True,
                assigns=False,
            ),
            Rebalance(connectors=[1, 1], tasks=[4, 4]),
            Rebalance(connectors=[1, 1], tasks=[4, 4], assigns=False),
        ],
    ),
    "worker joins with connectors and tasks that another worker runs and that are deleted": (
        TWO,
        DELAY,
        [
            Rebalance(connectors=[2], tasks=[8]),
            Rebalance(
                join_with={"worker2": connector("connector1", 4)},
                delete=["connector1"],
                connectors=[0, 1],
                tasks=[0, 2],
                revokes=True,
                assigns=False,
            ),
            Rebalance(connectors=[0, 1], tasks=[2, 2]),
            Rebalance(connectors=[0, 1], tasks=[2, 2], assigns=False),
        ],
    ),
    "worker joins with a connector that the leader has deleted": (
        TWO,
        DELAY,
        [
            Rebalance(connectors=[2], tasks=[8]),
            Rebalance(
                join_with={"worker2": connector("old", 3)}, connectors=[0, 1], tasks=[0, 4], revokes=True, assigns=False
            ),
            Rebalance(connectors=[1, 1], tasks=[4, 4]),
        ],
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_workers_have_the_expected_numbers_of_connectors_and_tasks_after_each_rebalance_of_a_scenario(
    name: str,
) -> None:
    task_counts, max_delay_ms, rebalances = SCENARIOS[name]
    group = Group(task_counts, max_delay_ms)
    for number, step in enumerate(rebalances):
        group.now_ms += step.wait
        group.join(*step.join)
        for worker, held in step.join_with.items():
            group.join(worker, held=held)
        for worker in step.leave:
            group.leave(worker)
        group.task_counts |= step.create
        for each in step.delete:
            del group.task_counts[each]
        if step.new_leader:
            group.elect_leader()
        plan = group.rebalance(sync_fails=step.sync_fails, leader_missed_sync=step.leader_missed_sync)
        found = (*group.counts(), plan.delay_ms, bool(plan.revoked), bool(plan.assigned))
        expected = (list(step.connectors), list(step.tasks), step.delay, step.revokes, step.assigns)
        assert found == expected, f"rebalance {number}"
    if not plan.revoked and not plan.delay_ms:
        group.assert_balanced()


def three_workers() -> Group:
    group = Group({"c": 9, "d": 0, "e": 0})
    group.join("worker2", "worker3")
    group.rebalance()
    assert group.counts() == ([1, 1, 1], [3, 3, 3])
    return group


def test_worker_that_joins_again_during_the_rebalance_delay_receives_its_earlier_connectors_and_tasks() -> None:
    group = three_workers()
    before = dict(group.held)
    group.leave("worker2")
    assert group.rebalance().delay_ms == DELAY
    group.now_ms += DELAY - 1
    group.join("worker2-returned")
    assert group.rebalance().delay_ms == 1
    group.now_ms += 1
    plan = group.rebalance()
    assert plan.assigned == {"worker2-returned": before["worker2"]}
    assert not plan.revoked


def test_tasks_of_a_departed_worker_are_divided_among_all_workers_that_joined_during_the_rebalance_delay() -> None:
    group = three_workers()
    lost = group.held["worker2"]
    group.leave("worker2")
    group.rebalance()
    group.join("new1")
    group.rebalance()
    group.join("new2")
    group.rebalance()
    group.now_ms += DELAY
    plan = group.rebalance()
    assert {worker: len(each.tasks) for worker, each in plan.assigned.items()} == {"new1": 2, "new2": 1}
    assert union(plan.assigned.values()) == lost


def test_worker_that_joined_during_the_rebalance_delay_receives_the_lost_tasks_even_if_it_runs_other_tasks() -> None:
    group = three_workers()
    lost = group.held["worker2"]
    group.leave("worker2")
    group.join("new")
    group.rebalance()
    group.task_counts |= {"f": 4}
    assert group.rebalance().assigned == {"new": connector("f", 4)}
    assert not group.rebalance().assigned
    group.now_ms += DELAY
    assert group.rebalance().assigned["new"] == lost


def test_worker_that_joined_during_an_earlier_rebalance_delay_is_not_preferred_after_a_later_delay() -> None:
    group = three_workers()
    for worker in ("worker2", "worker1"):
        group.leave(worker)
        if worker == "worker2":
            group.join("new")
        assert group.rebalance().delay_ms == DELAY
        group.now_ms += DELAY
        plan = group.rebalance()
    assert {worker: len(each.tasks) for worker, each in plan.assigned.items()} == {"new": 2, "worker3": 1}
    group.assert_balanced()


def test_departure_of_a_worker_that_missed_its_revocation_starts_the_rebalance_delay() -> None:
    """The leader knows which tasks the departed worker ran, although the worker did not receive the revocation."""
    group = Group(TWO)
    group.join("worker2")
    group.rebalance()
    group.join("worker3")
    revoked = group.rebalance(sync_fails=True).revoked
    assert revoked.keys() == {"worker1", "worker2"}
    lost = group.held["worker2"] - revoked["worker2"]
    group.leave("worker2")
    plan = group.rebalance()
    assert plan.delay_ms == DELAY
    assert union(plan.assigned.values()) == revoked["worker2"]
    group.now_ms += DELAY
    assert union(group.rebalance().assigned.values()) == lost


def test_tasks_of_a_departed_worker_are_assigned_to_the_least_loaded_workers_if_no_worker_joins() -> None:
    group = three_workers()
    group.leave("worker2")
    group.rebalance()
    group.now_ms += DELAY
    plan = group.rebalance()
    assert {worker: len(each.tasks) for worker, each in plan.assigned.items()} == {"worker1": 2, "worker3": 1}
    group.assert_balanced()


def test_departure_of_a_second_worker_does_not_extend_the_rebalance_delay() -> None:
    group = three_workers()
    group.leave("worker2")
    group.rebalance()
    group.now_ms += 100_000
    group.leave("worker3")
    assert group.rebalance().delay_ms == 200_000
    group.now_ms += 200_000
    assert group.rebalance().delay_ms == 0
    group.assert_balanced()


def test_assignment_that_workers_missed_is_sent_again_before_the_rebalance_delay_ends() -> None:
    """The rebalance delay applies only to connectors and tasks of departed workers."""
    group = three_workers()
    group.leave("worker2")
    group.rebalance()
    group.task_counts |= {"f": 1}
    missed = group.rebalance(sync_fails=True)
    assert union(missed.assigned.values()) == connector("f", 1)
    again = group.rebalance()
    assert union(again.assigned.values()) == connector("f", 1)
    assert again.delay_ms == DELAY


def test_revoked_task_that_stopped_late_is_assigned_before_the_rebalance_backoff_ends() -> None:
    """A worker reports a revoked task as held until the task has stopped.

    The rebalance backoff of 40 ms starts before the task has stopped.
    """
    group = Group({"c": 4})
    group.rebalance()
    group.join("worker2")
    before = group.held["worker1"]
    plan = group.rebalance(sync_fails=True)  # worker1 applies its assignment late
    revoked = plan.revoked["worker1"]
    assert len(revoked.tasks) == 2
    assert group.rebalance().delay_ms == 40
    group.held["worker1"] = before - revoked
    plan = group.rebalance()
    assert plan.assigned == {"worker2": Assignment(tasks=revoked.tasks)}
    assert plan.delay_ms == 40
    group.assert_balanced()


def test_backoff_between_revocations_is_reset_to_the_minimum_if_no_revocation_is_necessary() -> None:
    group = Group(THREE)
    group.rebalance()
    for worker in ("worker2", "worker3"):
        group.join(worker)
        plan = group.rebalance()
    assert plan.delay_ms == 40
    group.now_ms += 40
    assert group.rebalance().revoked
    assert not group.rebalance().revoked
    group.assert_balanced()
    for worker in ("worker4", "worker5"):
        group.join(worker)
        plan = group.rebalance()
    assert plan.delay_ms == 40


def test_backoff_between_revocations_grows_by_a_factor_of_40_to_the_maximum_delay() -> None:
    group = Group({"c": 100})
    group.rebalance()
    delays = []
    for number in range(12):
        group.join(f"new{number}")
        delays.append(group.rebalance().delay_ms)
        group.now_ms += delays[-1]
    assert delays == [0, 40, 0, 1_600, 0, 64_000, 0, 300_000, 0, 300_000, 0, 300_000]


def test_new_tasks_are_assigned_to_the_least_loaded_workers_first() -> None:
    """As in Kafka's testAssignTasksWhenImbalanced, four workers have 2, 3, 4 and 0 tasks.

    After 15 new tasks are assigned, each worker has 6 tasks.
    """
    counts = {"worker1": 2, "worker2": 3, "worker3": 4, "worker4": 0}
    held: dict[str, frozenset[TaskId]] = {}
    start = 0
    for worker, count in counts.items():
        held[worker] = frozenset(("c", number) for number in range(start, start + count))
        start += count
    group = Group({})
    group.held = {worker: Assignment(tasks=tasks) for worker, tasks in held.items()}
    group.task_counts = {"c": 24}
    plan = group.rebalance()
    assert group.counts()[1] == [6, 6, 6, 6]
    assert not plan.revoked


def test_numbers_of_tasks_per_worker_differ_by_at_most_one_after_revocations() -> None:
    group = Group({"c": 11})
    group.rebalance()
    group.join("worker2", "worker3")
    plan = group.rebalance()
    assert len(plan.revoked["worker1"].tasks) == 7  # 11 = 4 + 4 + 3
    group.rebalance()
    assert group.counts()[1] == [3, 4, 4]


def test_numbers_of_connectors_and_of_tasks_per_worker_are_balanced_separately() -> None:
    group = Group({"c": 1, "d": 1})
    group.held = {
        "worker1": Assignment(frozenset({"c", "d"})),
        "worker2": Assignment(tasks=frozenset({("c", 0), ("d", 0)})),
    }
    plan = group.rebalance()
    assert {worker: (len(each.connectors), len(each.tasks)) for worker, each in plan.revoked.items()} == {
        "worker1": (1, 0),
        "worker2": (0, 1),
    }


def test_incremental_assignor_does_not_modify_its_arguments() -> None:
    group = Group(TWO)
    held = {"worker1": EMPTY, "worker2": connector("connector1", 4)}
    copy = dict(held)
    group._assignor.assign(connectors_and_tasks(TWO), held, last_generation=-1, generation=1, now_ms=0)
    assert held == copy


# Eager assignor


def test_round_robin_continues_with_the_next_worker_when_it_assigns_tasks_after_connectors() -> None:
    found = assign_round_robin(["m2", "m1"], connectors_and_tasks({"b": 1, "a": 2, "c": 0}))
    assert found == {
        "m1": Assignment(frozenset({"a", "c"}), frozenset({("a", 1)})),
        "m2": Assignment(frozenset({"b"}), frozenset({("a", 0), ("b", 0)})),
    }


def test_round_robin_assigns_tasks_in_numeric_order() -> None:
    found = assign_round_robin(["m1", "m2"], connectors_and_tasks({"a": 12}))
    assert found["m2"].tasks == {("a", number) for number in range(0, 12, 2)}
    assert found["m1"] == Assignment(frozenset({"a"}), frozenset(("a", number) for number in range(1, 12, 2)))


def test_round_robin_returns_an_empty_assignment_for_a_worker_that_gets_no_task() -> None:
    assert assign_round_robin(["m1", "m2"], connectors_and_tasks({"a": 0})) == {
        "m1": Assignment(frozenset({"a"})),
        "m2": EMPTY,
    }


# Assignments


def test_all_connectors_and_tasks_in_a_config_snapshot_are_found() -> None:
    states = {
        "a": ConnectorState({}, TargetState.STARTED, 0, task_configs=({}, {})),
        "b": ConnectorState({}, TargetState.STOPPED, 1),
    }
    assert configured(ConfigSnapshot(2, states)) == connectors_and_tasks({"a": 2, "b": 0})


def test_connectors_and_tasks_in_more_than_one_assignment_are_duplicates() -> None:
    a = Assignment(frozenset({"a", "b"}), frozenset({("a", 0), ("a", 1)}))
    b = Assignment(frozenset({"b", "c"}), frozenset({("a", 1), ("b", 1)}))
    assert duplicates([a, b]) == Assignment(frozenset({"b"}), frozenset({("a", 1)}))
    assert duplicates([]) == union([]) == EMPTY
    assert not EMPTY
    assert Assignment(tasks=frozenset({("a", 0)}))


def test_assignment_can_contain_a_connector_without_the_tasks_of_the_connector() -> None:
    """An assignment can also contain a task without the task's connector."""
    found = Assignment(frozenset({"a"}), frozenset({("b", 1)}))
    assert found.contains("a", None)
    assert found.contains("b", 1)
    assert not found.contains("b", None)
    assert not found.contains("a", 1)
