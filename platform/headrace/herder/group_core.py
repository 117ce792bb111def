"""Decides which connectors and tasks a worker in a group starts and stops, and when it rejoins.

The owner of a `GroupCore` reports the events of the group membership and of the config topic, and carries out the
returned effects in order. The rules are the same as in Kafka Connect's WorkerCoordinator and DistributedHerder:

- The worker starts assigned connectors and tasks after it has read the config topic to the offset of the assignment.
- It rejoins the group after it has stopped the instances that the leader revoked. Until then it reports them as
  held, so that no other worker starts them. A rebalance does not wait for them.
- It rejoins after the delay that the leader set, and when the set of configured connectors and tasks changes.

This module does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.herder.assignment import EMPTY, NAME_BYTES_MAX, Assignment, configured, is_assignable, union
from headrace.herder.assignors import IncrementalAssignor, assign_round_robin
from headrace.herder.group_protocol import (
    CONFIG_MISMATCH,
    GroupAssignment,
    GroupProtocolError,
    Version,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
)
from headrace.stores.config_store import ConfigSnapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Run exactly these connectors and tasks. In the background, start those that are missing and stop all others."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class AwaitStop:
    """Carry out the next effect only after these connectors and tasks have stopped."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class ReportStop:
    """Call `stopped` after these connectors and tasks have stopped.

    Carry out the next effect without waiting for this.
    """

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class ReadConfigs:
    """Read the config topic to its end.

    If this fails, omit the effects that follow, leave the group, and rejoin it when the topic can be read.
    """


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Rejoin the group after a delay. If the delay is 0, rejoin immediately."""

    reason: str
    delay_ms: int = 0


GroupEffect: TypeAlias = Run | AwaitStop | ReportStop | ReadConfigs | Rejoin


class GroupCore:
    """One worker of a group."""

    def __init__(self, url: str, highest: Version, max_delay_ms: int) -> None:
        self.url = url
        self.generation = -1
        self.leader_url: str | None = None
        self.is_leader = False
        self.was_leader = False
        """Whether this worker was the leader in the last generation. During a rebalance, no other worker is."""
        self.version = highest
        self._highest = highest
        self._held: GroupAssignment | None = None
        self._stopping = EMPTY  # connectors and tasks that the leader has revoked and that have not stopped yet
        self._stopped_to_join = EMPTY  # with the eager protocol, these stop before the worker joins
        self._snapshot = ConfigSnapshot()
        self._configured = EMPTY
        self._max_delay_ms = max_delay_ms
        self._assignor = IncrementalAssignor(max_delay_ms)
        self._is_joining = True
        self._history: list[
            tuple[int, Assignment]
        ] = []  # (offset, what was configured from this offset on) since the last join
        self.reported = EMPTY
        """The leader's view: the connectors and tasks that the members held or had not stopped yet when they joined."""
        self._owners: Mapping[str, Assignment] = {}  # the leader's view: what each member runs
        self._urls: Mapping[str, str] = {}  # the leader's view: the URL of each member
        self._running = EMPTY  # the leader's view: what the members ran when they joined, and what they run now

    @property
    def assignment(self) -> Assignment:
        """The connectors and tasks that this worker is to run."""
        return EMPTY if self._held is None else self._held.assigned

    def may_commit(self, connector: str, task: int | None) -> bool:
        """Whether a task may commit offsets.

        If so, no other worker can run the task before this worker has stopped it.
        """
        return (self.assignment | self._stopping | self._stopped_to_join).contains(connector, task)

    def metadata(self) -> WorkerMetadata:
        """Return the state that the worker sends with JoinGroup."""
        held = self._held
        if held is not None:
            held = replace(held, assigned=held.assigned | self._stopping)
        return WorkerMetadata(self.url, self._snapshot.offset, held)

    @property
    def highest(self) -> Version:
        """The highest version of the protocol that the worker offers."""
        return self._highest

    def owner_url(self, connector: str, task: int | None) -> str | None:
        """Return the URL of the worker that runs a connector (task None) or task.

        Only the leader knows it; others return None.
        """
        if not self.is_leader:
            return None
        owner = next((member for member, owned in self._owners.items() if owned.contains(connector, task)), None)
        return None if owner is None else self._urls.get(owner)

    def may_run_task(self, connector: str) -> bool:
        """Whether a member of the group may be running a task of the connector. Only the leader knows this.

        A member joins again after it has stopped the tasks that the leader revoked.
        """
        return any(name == connector for name, _ in self._running.tasks)

    # Events

    def on_snapshot(self, snapshot: ConfigSnapshot) -> list[GroupEffect]:
        """Handle a new state of the config topic."""
        self._log_unassignable(snapshot)
        before, self._snapshot, self._configured = self._configured, snapshot, configured(snapshot)
        if before != self._configured or not self._history:
            self._history.append((snapshot.offset, self._configured))
        if before == self._configured or self._is_joining:
            return []
        return self._rejoin_if_changed()

    def _log_unassignable(self, snapshot: ConfigSnapshot) -> None:
        for name in snapshot.connectors.keys() - self._snapshot.connectors.keys():
            if not is_assignable(name):
                log.error(
                    "Connector %.100s...: not assigned, because its name has more than %d bytes; delete this connector",
                    name,
                    NAME_BYTES_MAX,
                )

    def _rejoin_if_changed(self) -> list[GroupEffect]:
        """Rejoin if the configured connectors and tasks differ from those on which the current assignment is based.

        A worker may read a change after the rebalance that the change caused. In this case, it does not rejoin.
        """
        offset = -1 if self._held is None else self._held.config_offset
        if self._snapshot.offset <= offset:
            return []
        assigned = self._history[0][1]  # the leader, which knows earlier offsets, rejoins if this is not correct
        for since, each in self._history:
            if since <= offset:
                assigned = each
        return [] if assigned == self._configured else [Rejoin("connectors or tasks were created or deleted")]

    def on_join_prepare(self) -> list[GroupEffect]:
        """Handle the beginning of a rebalance. With the eager protocol, first stop all connectors and tasks."""
        self.is_leader, self._owners, self._is_joining = False, {}, True
        if self.version is not Version.EAGER or self._held is None:
            return []
        self._stopped_to_join = self.assignment | self._stopping
        return self._drop()

    def on_membership_lost(self) -> list[GroupEffect]:
        """Handle the end of the membership. Other workers will run the connectors and tasks of this worker."""
        self.is_leader = self.was_leader = False
        self._owners, self.leader_url, self._is_joining = {}, None, True
        self._stopped_to_join = EMPTY
        self._forget_rebalances()
        return self._drop()

    def _forget_rebalances(self) -> None:
        """Clear the leader's memory of rebalances, because another leader may have made decisions meanwhile."""
        self._assignor = IncrementalAssignor(self._max_delay_ms)

    def _drop(self) -> list[GroupEffect]:
        dropped, self._held, self._stopping = self.assignment | self._stopping, None, EMPTY
        return [Run(EMPTY), AwaitStop(dropped)] if dropped else []

    def on_assignment(self, generation: int, protocol: str, data: bytes, member_id: str) -> list[GroupEffect]:
        """Handle the assignment of a new generation. Raises GroupProtocolError."""
        new, before = decode_assignment(data), self.assignment
        self._stopped_to_join = EMPTY
        self.version, self.generation = Version.of_protocol(protocol), generation
        self.leader_url, self._is_joining = new.leader_url, False
        self.is_leader = self.was_leader = new.leader == member_id
        if not self.is_leader:
            self._forget_rebalances()
        if new.error:
            return self._on_failed_assignment(new)
        if self.version is Version.EAGER:
            self._held, self._stopping = new, EMPTY
            return [*self._rejoin_if_changed(), ReadConfigs(), Run(new.assigned)]
        revoked = new.revoked & (before | self._stopping)
        self._held = replace(new, assigned=(before - new.revoked) | new.assigned, revoked=EMPTY)
        self._stopping = (self._stopping | revoked) - new.assigned
        effects: list[GroupEffect] = []
        if new.delay_ms > 0:
            effects.append(Rejoin("the delay of the scheduled rebalance has elapsed", new.delay_ms))
        if revoked:
            effects.append(Run(before - new.revoked))
        elif new.revoked:
            effects.append(Rejoin("this worker does not run the connectors and tasks that the leader revoked"))
        if self._stopping:  # an earlier report may wait for a connector or task that this worker runs again
            effects.append(ReportStop(self._stopping))
        effects += self._rejoin_if_changed()
        effects += [ReadConfigs()] if self._snapshot.offset < new.config_offset else []
        return [*effects, Run(self.assignment)]

    def _on_failed_assignment(self, new: GroupAssignment) -> list[GroupEffect]:
        what = (
            "the leader has read less of the config topic than another worker"
            if new.error == CONFIG_MISMATCH
            else f"error {new.error}"
        )
        log.info("Group assignment failed (%s); reading the config topic, then rejoining", what)
        return [ReadConfigs(), Rejoin("the assignment failed")]

    def stopped(self, assignment: Assignment) -> list[GroupEffect]:
        """Handle that revoked connectors and tasks have stopped. When all have stopped, other workers can run them."""
        if not self._stopping:
            return []
        self._stopping -= assignment
        return [] if self._stopping else [Rejoin("revoked connectors and tasks have stopped")]

    # The leader

    def is_behind(self, members: Mapping[str, bytes]) -> bool:
        """Whether a member has read more of the config topic than this worker."""
        return self._snapshot.offset < max(each.config_offset for each in _decode_members(members).values())

    def compute_assignments(
        self, generation: int, protocol: str, leader: str, members: Mapping[str, bytes], now_ms: int
    ) -> dict[str, bytes]:
        """Return the assignment of each member, or the error CONFIG_MISMATCH for each if this worker is behind.

        Raises GroupProtocolError.
        """
        version = Version.of_protocol(protocol)
        found = _decode_members(members)
        for member in members.keys() - found.keys():
            log.error(
                "Group member %s: no connectors and tasks are assigned to this member, because its metadata cannot be "
                "read; check whether the member is a Connect worker",
                member,
            )
        self._urls = {member: metadata.url for member, metadata in found.items()}
        offset = max(metadata.config_offset for metadata in found.values())
        answer = GroupAssignment(leader, self._urls[leader], offset)
        if self._snapshot.offset < offset:
            log.error(
                "Config topic: the leader (this worker) has read to offset %d, but another worker has read to %d; "
                "the group reads the topic again",
                self._snapshot.offset,
                offset,
            )
            return dict.fromkeys(members, encode_assignment(replace(answer, error=CONFIG_MISMATCH), version))
        # Each worker reads the config topic to this offset before it starts connectors and tasks.
        answer = replace(answer, config_offset=self._snapshot.offset)
        if version is Version.EAGER:
            self.reported = EMPTY  # the members stopped everything before they joined
            self._owners = assign_round_robin(found, self._configured)
            self._running = union(self._owners.values())
            answers = {member: replace(answer, assigned=self._owners.get(member, EMPTY)) for member in members}
        else:
            held = {member: _held(metadata) for member, metadata in found.items()}
            self.reported = union(held.values())
            plan = self._assignor.assign(
                self._configured, held, last_generation=self.generation, generation=generation, now_ms=now_ms
            )
            self._owners = plan.owned
            self._running = union([*held.values(), *plan.owned.values()])
            answers = {
                member: replace(
                    answer,
                    assigned=plan.assigned.get(member, EMPTY),
                    revoked=plan.revoked.get(member, EMPTY),
                    delay_ms=plan.delay_ms,
                )
                for member in members
            }
        for member, each in answers.items():
            log.debug(
                "Group member %s: generation %d assigns %s; it revokes %s; scheduled rebalance delay %d ms",
                member,
                generation,
                each.assigned,
                each.revoked,
                each.delay_ms,
            )
        return {member: encode_assignment(each, version) for member, each in answers.items()}


def _decode_members(members: Mapping[str, bytes]) -> dict[str, WorkerMetadata]:
    """Return the metadata of each member whose metadata can be read. The worker's own metadata can always be read."""
    found: dict[str, WorkerMetadata] = {}
    for member, metadata in members.items():
        with suppress(GroupProtocolError):
            found[member] = decode_metadata(metadata)
    return found


def _held(metadata: WorkerMetadata) -> Assignment:
    return EMPTY if metadata.held is None else metadata.held.assigned
