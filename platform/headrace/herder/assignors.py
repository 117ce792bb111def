"""Assigns connectors and tasks to the workers of a group. The leader of the group does this in each rebalance.

`assign_round_robin` is the assignor of eager rebalances. `IncrementalAssignor` follows the rules of Kafka Connect's
incremental cooperative rebalances (KIP-415), so that a group may contain workers of headrace and of Kafka Connect, and
any of them may become the leader:

- A worker keeps what it runs, unless the connector or task was deleted, runs on two workers, or is revoked to balance
  the load. A connector or task that is revoked in one rebalance is assigned in the next rebalance, after the worker has
  stopped it.
- If a worker leaves, its connectors and tasks stay unassigned for scheduled.rebalance.max.delay.ms, even if the worker
  returns earlier. They are then assigned to the workers that run nothing, or else to all workers. There is
  no such delay if the leader leaves, because the next leader does not know the previous assignment.
- Successive rebalances that revoke to balance the load are delayed with an exponential back-off (KAFKA-12495).

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TypeVar

from headrace.herder.assignment import EMPTY, Assignment, TaskId, duplicates, union

_T = TypeVar("_T")
_BACKOFF_FACTOR = 40


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The result of a rebalance, by member. A member without an entry has nothing to start and nothing to stop."""

    assigned: Mapping[str, Assignment]
    revoked: Mapping[str, Assignment]
    owned: Mapping[str, Assignment]
    """The connectors and tasks that each member runs after the rebalance."""
    delay_ms: int = 0


@dataclass(slots=True)
class _Load:
    """The connectors and tasks of one member, in the order in which they are revoked."""

    member: str
    connectors: list[str] = field(default_factory=list)
    tasks: list[TaskId] = field(default_factory=list)

    @classmethod
    def of(cls, member: str, assignment: Assignment) -> _Load:
        return cls(member, sorted(assignment.connectors), sorted(assignment.tasks))

    def as_assignment(self) -> Assignment:
        return Assignment(frozenset(self.connectors), frozenset(self.tasks))


def assign_round_robin(members: Iterable[str], configured: Assignment) -> dict[str, Assignment]:
    """Distribute first the connectors and then the tasks over the members, which are sorted by id."""
    loads = [_Load(member) for member in sorted(members)]
    targets = cycle(loads)
    for name in sorted(configured.connectors):
        next(targets).connectors.append(name)
    for task in sorted(configured.tasks):
        next(targets).tasks.append(task)
    return {load.member: load.as_assignment() for load in loads}


class IncrementalAssignor:
    """Computes assignments, and remembers earlier rebalances. A new leader starts without this memory."""

    def __init__(self, max_delay_ms: int) -> None:
        self._max_delay_ms = max_delay_ms
        self._previous_generation = -1
        self._previous_members: frozenset[str] = frozenset()
        self._previous = EMPTY
        self._previous_owned: Mapping[str, Assignment] = {}
        self._delay_ms = 0
        self._due_ms: int | None = None  # the end of the delay
        self._candidates: set[str] = set()  # the members without work during the delay
        self._has_revoked = False  # the previous rebalance revoked connectors or tasks to balance the load
        self._successive_revocations = 0

    def assign(
        self,
        configured: Assignment,
        held: Mapping[str, Assignment],
        *,
        last_generation: int,
        generation: int,
        now_ms: int,
    ) -> GroupPlan:
        """Compute the assignment of a new generation.

        `held` contains the connectors and tasks that each member runs. `last_generation` is the last generation that
        the leader completed. If the leader did not receive the previous assignment, this is not the previous
        generation, and the leader's memory is outdated.
        """
        if self._previous_generation != last_generation:
            self._previous = EMPTY
        active = union(held.values())
        deleted = (self._previous | active) - configured  # a new leader knows a deleted connector only from the members
        duplicated = duplicates(held.values())
        lost = self._previous - active - deleted
        # The owner of these connectors and tasks is still a member, so they need not wait for a departed worker. The
        # owner did not receive the previous assignment, or stopped them late, after a revocation that the previous
        # rebalance did not repeat.
        released = lost & union(self._previous_owned.get(member, EMPTY) for member in held)
        created = configured - self._previous - active

        revoked = {member: assignment & (deleted | duplicated) for member, assignment in held.items()}
        loads = [_Load.of(member, held[member] - revoked[member]) for member in sorted(held)]
        to_assign = created | released | self._handle_lost(lost - released, loads, now_ms)
        self._balance(configured, loads, revoked, now_ms)
        _assign_evenly([load.connectors for load in loads], sorted(to_assign.connectors))
        _assign_evenly([load.tasks for load in loads], sorted(to_assign.tasks))

        owned = {load.member: load.as_assignment() for load in loads}
        self._previous = (union(owned.values()) - union(revoked.values())) | lost
        self._previous_owned = owned
        self._previous_generation, self._previous_members = generation, frozenset(held)
        return GroupPlan(
            assigned={member: each for member, own in owned.items() if (each := own - held[member])},
            revoked={member: each for member, each in revoked.items() if each},
            owned=owned,
            delay_ms=self._delay_ms,
        )

    def _handle_lost(self, lost: Assignment, loads: Sequence[_Load], now_ms: int) -> Assignment:
        """Return the lost connectors and tasks that must be assigned now. Delay the assignment of all others."""
        if not lost and not self._has_revoked:
            self._end_delay()
            return EMPTY
        members = {load.member for load in loads}
        if self._due_ms is None and members >= self._previous_members:
            return lost  # no worker has departed, but one did not receive its previous assignment
        if self._max_delay_ms == 0:
            return lost
        if self._due_ms is not None and now_ms >= self._due_ms:
            remaining = self._assign_to_candidates(lost, loads)
            self._end_delay()
            self._has_revoked = False
            return remaining
        self._candidates |= {load.member for load in loads if not load.connectors and not load.tasks}
        self._delay_ms = self._max_delay_ms if self._due_ms is None else min(self._due_ms - now_ms, self._max_delay_ms)
        self._due_ms = now_ms + self._delay_ms
        return EMPTY

    def _assign_to_candidates(self, lost: Assignment, loads: Sequence[_Load]) -> Assignment:
        """Assign lost connectors and tasks to the members in `_candidates`. If there are none, return `lost`."""
        found = [load for load in loads if load.member in self._candidates]
        if not found:
            return lost
        for name, load in zip(sorted(lost.connectors), cycle(found), strict=False):
            load.connectors.append(name)
        for task, load in zip(sorted(lost.tasks), cycle(found), strict=False):
            load.tasks.append(task)
        return EMPTY

    def _end_delay(self) -> None:
        self._candidates.clear()
        self._due_ms = None
        self._delay_ms = 0

    def _balance(
        self, configured: Assignment, loads: Sequence[_Load], revoked: dict[str, Assignment], now_ms: int
    ) -> None:
        """Revoke connectors and tasks from members with more than their share, unless a delay is in progress."""
        if self._delay_ms:
            self._has_revoked = False
            return
        surplus = _surplus(configured, loads)
        if not surplus:
            self._has_revoked = False
            self._successive_revocations = 0
            return
        if self._has_revoked:
            self._successive_revocations += 1
            self._delay_ms = self._backoff_ms()
            if self._delay_ms:
                self._due_ms = now_ms + self._delay_ms
                return
        self._has_revoked = True
        for load in loads:
            excess = surplus.get(load.member, EMPTY)
            revoked[load.member] |= excess
            load.connectors = [name for name in load.connectors if name not in excess.connectors]
            load.tasks = [task for task in load.tasks if task not in excess.tasks]

    def _backoff_ms(self) -> int:
        if self._max_delay_ms == 0:
            return 0
        exponent = min(self._successive_revocations, 10)  # the limit keeps the power small
        return int(min(_BACKOFF_FACTOR**exponent, self._max_delay_ms))


def _surplus(configured: Assignment, loads: Sequence[_Load]) -> dict[str, Assignment]:
    """Return the connectors and tasks of each member that exceed its share of those configured."""
    if not configured or not any(load.connectors or load.tasks for load in loads):
        return {}
    connectors = _excess(len(configured.connectors), {load.member: load.connectors for load in loads})
    tasks = _excess(len(configured.tasks), {load.member: load.tasks for load in loads})
    members = connectors.keys() | tasks.keys()
    return {
        member: Assignment(frozenset(connectors.get(member, ())), frozenset(tasks.get(member, ())))
        for member in members
    }


def _excess(total: int, held: Mapping[str, Sequence[_T]]) -> dict[str, Sequence[_T]]:
    """Return the items of each member above an even share of `total`.

    If `total` is not divisible by the number of members, the remainder is the number of members that may keep one more
    item than the others.
    """
    share, remainder = divmod(total, len(held))
    sizes = [len(items) for items in held.values()]
    if sizes.count(share + 1) == remainder and sizes.count(share) + sizes.count(share + 1) == len(held):
        return {}
    found: dict[str, Sequence[_T]] = {}
    for member, items in held.items():
        if len(items) <= share:
            continue
        limit = share
        if remainder:
            remainder -= 1
            limit += 1
        if len(items) > limit:
            found[member] = items[: len(items) - limit]
    return found


def _assign_evenly(held: Sequence[list[_T]], items: Sequence[_T]) -> None:
    """Assign each item to a member with the fewest items. `held` contains the items of each member."""
    for item in items:
        min(held, key=len).append(item)
