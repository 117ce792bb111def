"""Simulates a Kafka Connect cluster, its brokers, requests of users, and faults.

If a run violates a guarantee, the simulation raises `Violation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.herder.assignment import EMPTY, Assignment, configured
from headrace.herder.group_protocol import NO_ERROR, Version, decode_assignment, decode_metadata
from headrace.runtime.spec import InstanceId
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    ConnectorState,
    DeleteConnector,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.config_topic_state import ConfigTopicState
from headrace.stores.status_store import State
from support.herder_simulation import worker as workers
from support.herder_simulation.brokers import Coordinator, Topic
from support.herder_simulation.kernel import Future, Kernel, NoResponseError, Steps
from support.herder_simulation.worker import NotLeaderError, SimulatedWorker, task_configs_of

FAULTS_END_MS, QUIET_MS, STABLE_MS = 150_000, 420_000, 120_000
CONNECTORS = ("a", "b-1", "c")
_NOTICE_MS = workers.JOIN_TIMEOUT_MS + workers.SESSION_MS + workers.REQUEST_TIMEOUT_MS + workers.GRACEFUL_STOP_MS


class Violation(Exception):
    """A run violates a guarantee."""


@dataclass
class Running:
    """A connector or task that a worker runs, from its start until it has completely stopped."""

    id: InstanceId
    config: Mapping[str, str]
    is_paused: bool
    started_ms: int
    position: int = 0
    has_ended: bool = False
    is_stopping: bool = False
    has_overlapped: bool = False
    """At the same time, another worker ran the same connector or task.

    The worker without a membership may commit old offsets.
    """


@dataclass
class Expected:
    """The configurations that a connector may have after the user's requests."""

    acknowledged: str | None = None
    """The version of the last acknowledged configuration, or None if the connector does not exist."""
    possible: set[str | None] = field(default_factory=set)
    """The versions of requests without a response; a worker that was paused may still execute them."""


class World:
    """One run of the simulation."""

    def __init__(self, seed: int, *, checks_statuses: bool = False) -> None:
        self.kernel = Kernel(seed)
        self.configs, self.statuses, self.offsets = (Topic(self.kernel) for _ in range(3))
        self.coordinator = Coordinator(self.kernel, self._check_assignments)
        self.running: dict[tuple[SimulatedWorker, str, int | None], Running] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self.has_faults = True
        self.expected = {name: Expected() for name in CONNECTORS}
        self._checks_statuses = checks_statuses
        self._number = 0
        self._committed: dict[tuple[str, int], tuple[int, bool]] = {}
        rng = self.kernel.rng
        self._slow_reads = rng.random() < 0.4
        self._max_delay_ms = rng.choice([0, 5_000, 20_000])
        self._versions = [rng.choice([Version.EAGER, Version.SESSIONED, Version.SESSIONED, Version.SESSIONED])] * 4
        if rng.random() < 0.15:
            # Without EAGER: as in Kafka, a downgrade to EAGER lets a worker start what another is still stopping.
            self._versions = [rng.choice([Version.COMPATIBLE, Version.SESSIONED]) for _ in range(4)]
        self._names = [f"w{number}" for number in range(rng.randint(2, 4))]

    def latency_ms(self) -> int:
        """Return a random delay for a message between a worker and a broker."""
        rng = self.kernel.rng
        return rng.randint(1, 2_000) if self.has_faults and rng.random() < 0.02 else rng.randint(1, 15)

    def read_delay_ms(self) -> int:
        """Return a random delay until a worker reads new records."""
        rng = self.kernel.rng
        return (
            rng.randint(1, 1_500) if self.has_faults and self._slow_reads and rng.random() < 0.3 else rng.randint(1, 30)
        )

    # The run

    def run(self) -> None:
        """Run with faults, then without faults, and check the state of the group at the end. Raises Violation."""
        kernel = self.kernel
        for number, name in enumerate(self._names):
            kernel.call_later(kernel.rng.randint(0, 3_000), lambda name=name: self._start_worker(name))
            del number
        for name in CONNECTORS:
            self._spawn(self._use(name))
        self._spawn(self._inject_faults())
        self._spawn(self._compact())
        kernel.run_until(FAULTS_END_MS)
        self._heal()
        kernel.run_until(FAULTS_END_MS + QUIET_MS)
        self._check_stable_group()
        rebalances = self.coordinator.rebalances
        kernel.run_until(FAULTS_END_MS + QUIET_MS + STABLE_MS)
        self._check_stable_group()
        if self.coordinator.rebalances != rebalances:
            raise Violation(f"a stable group rebalanced {self.coordinator.rebalances - rebalances} times")

    def _spawn(self, steps: Steps) -> None:
        from support.herder_simulation.kernel import Scope

        Scope(self.kernel).spawn(steps)

    def _start_worker(self, name: str) -> None:
        version = self._versions[int(name[1:])]
        found = self.workers[name] = SimulatedWorker(self, name, version, self._max_delay_ms)
        found.start()

    def _inject_faults(self) -> Steps:
        rng = self.kernel.rng
        while self.kernel.now_ms < FAULTS_END_MS - 10_000:
            yield rng.randint(500, 15_000)
            found = [each for each in self.workers.values() if not each.scope.is_dead and not each.scope.is_paused]
            if not found:
                continue
            victim = rng.choice(found)
            match rng.choice(["crash", "pause", "unreachable", "coordinator", "shutdown"]):
                case "crash":
                    victim.crash()
                    self.kernel.call_later(rng.randint(1_000, 40_000), lambda victim=victim: self._restart(victim.name))
                case "pause":
                    victim.pause()
                    self.kernel.call_later(rng.randint(500, 40_000), lambda victim=victim: self._resume(victim))
                case "unreachable":
                    self._set_unreachable(victim, True)
                    heal = rng.randint(500, 40_000)
                    self.kernel.call_later(heal, lambda victim=victim: self._set_unreachable(victim, False))
                case "coordinator" if self.coordinator.is_available:
                    self.kernel.trace("coordinator: moves")
                    self.coordinator.stop()
                    self.kernel.call_later(rng.randint(10, 15_000), self._start_coordinator)
                case "shutdown":
                    victim.scope.spawn(self._shut_down(victim))

    def _shut_down(self, victim: SimulatedWorker) -> Steps:
        victim.trace("shuts down")
        victim.carry_out(victim.herder.assign(EMPTY))
        yield 500
        yield from victim.leave()
        if not victim.scope.is_dead:
            victim.crash()
            self.kernel.call_later(self.kernel.rng.randint(1_000, 20_000), lambda: self._restart(victim.name))

    def _restart(self, name: str) -> None:
        if self.workers[name].scope.is_dead:
            self._start_worker(name)

    def _resume(self, victim: SimulatedWorker) -> None:
        if victim.scope.is_paused and not victim.scope.is_dead:
            victim.resume()

    def _set_unreachable(self, victim: SimulatedWorker, value: bool) -> None:
        victim.trace("loses its connections" if value else "can connect again")
        victim.is_unreachable = value

    def _start_coordinator(self) -> None:
        if not self.coordinator.is_available:
            self.kernel.trace("coordinator: starts on another broker")
            self.coordinator.start()

    def _heal(self) -> None:
        self.kernel.trace("no more faults")
        self.has_faults = False
        self._start_coordinator()
        for name in self._names:
            each = self.workers.get(name)
            if each is None or each.scope.is_dead:
                self._start_worker(name)
                continue
            each.is_unreachable = False
            self._resume(each)

    def _compact(self) -> Steps:
        while True:
            yield self.kernel.rng.randint(2_000, 30_000)
            self.kernel.rng.choice([self.configs, self.statuses, self.offsets]).compact()

    # Users' requests

    def _use(self, name: str) -> Steps:
        rng = self.kernel.rng
        yield rng.randint(3_000, 15_000)
        while self.kernel.now_ms < FAULTS_END_MS + 20_000:
            change, version = self._next_change(name)
            if change is not None:
                self.kernel.trace(f"user: {change}")
                yield from self._change(name, change, version)
            yield rng.randint(1_000, 25_000)

    def _next_change(self, name: str) -> tuple[ConfigChange | None, str | None]:
        rng, expected = self.kernel.rng, self.expected[name]
        self._number += 1
        version = f"v{self._number}"
        config = {"v": version, "tasks": str(rng.randint(1, 4)), "task.v": rng.choice(["same", version])}
        if expected.acknowledged is None:
            return PutConnector(
                name, config, rng.choice([None, None, TargetState.PAUSED, TargetState.STARTED])
            ), version
        kinds = ["put", "put", "pause", "resume", "resume", "stop", "restart", "delete"]
        match rng.choice(kinds if self.has_faults else ["put", "resume"]):
            case "put":
                return PutConnector(name, config), version
            case "delete":
                return DeleteConnector(name), None
            case "pause":
                return PutTargetState(name, TargetState.PAUSED), expected.acknowledged
            case "resume":
                return PutTargetState(name, TargetState.STARTED), expected.acknowledged
            case "stop":
                return PutTargetState(name, TargetState.STOPPED), expected.acknowledged
            case _:
                return RequestRestart(name, True, rng.random() < 0.5), expected.acknowledged

    def _change(self, name: str, change: ConfigChange, version: str | None) -> Steps:
        """Send a request that changes the connector `name`, at most four times, until it is acknowledged.

        `version` is the version of the connector's configuration after the change, or None if the connector is deleted.
        """
        expected, changes_config = self.expected[name], isinstance(change, PutConnector | DeleteConnector)
        for _ in range(4):
            target = self.kernel.rng.choice(sorted(self.workers))
            try:
                yield from self.call_worker(None, target, lambda worker: self._execute(worker, change), 60_000)
            except (NoResponseError, NotLeaderError):
                if changes_config:
                    expected.possible.add(version)
                yield 1_000
                continue
            if changes_config:
                expected.acknowledged = version
            return

    def _execute(self, worker: SimulatedWorker, change: ConfigChange) -> Steps:
        yield from worker.wait_until_stable()
        if not worker.group.is_leader:
            url = worker.group.leader_url
            if url is None:
                raise NotLeaderError
            yield from self.call_worker(worker, url, lambda leader: self._execute_as_leader(leader, change))
            return
        yield from self._execute_as_leader(worker, change)

    def _execute_as_leader(self, leader: SimulatedWorker, change: ConfigChange) -> Steps:
        yield from leader.prepare_change()
        if not isinstance(change, PutConnector) and change.connector not in leader.herder.snapshot.connectors:
            # type: ignore[union-attr]
            return
        if isinstance(change, PutTargetState) and change.target is TargetState.STOPPED:
            yield from leader.append(PutTaskConfigs(change.connector, ()))
        yield from leader.append(change)

    def call_worker(
        self,
        sender: SimulatedWorker | None,
        name: str,
        call: Callable[[SimulatedWorker], Steps],
        timeout_ms: int = 30_000,
    ) -> Steps:
        """Send a REST request to the worker `name`, which executes `call`. Raises NoResponseError, NotLeaderError."""
        response, found = Future(), self.workers.get(name)

        def run(worker: SimulatedWorker) -> Steps:
            try:
                result = yield from call(worker)
            except (NoResponseError, NotLeaderError) as error:
                result = error
            self.kernel.call_later(self.latency_ms(), lambda: response.set(result))

        def arrive() -> None:
            if found is not None:
                found.scope.guard(lambda: found.scope.spawn(run(found)) and None)

        self.kernel.call_later(self.latency_ms(), arrive)
        self.kernel.call_later(timeout_ms, lambda: response.set(NoResponseError()))
        del sender
        return (yield response)

    # Connectors and tasks

    def begin(self, worker: SimulatedWorker, id_: InstanceId, config: Mapping[str, str], *, is_paused: bool) -> Running:
        """Record that a worker starts a connector or task.

        Raises Violation if another worker runs the same connector or task, and neither worker has lost its membership.
        """
        key = worker, id_.connector, id_.task
        if key in self.running:
            raise Violation(f"{worker.name} started {id_.name} twice")
        overlaps = False
        for (other, name, task), instance in self.running.items():
            if (name, task) != (id_.connector, id_.task) or other is worker:
                continue
            instance.has_overlapped = overlaps = True
            if not self._is_excused(other) and not self._is_excused(worker):
                raise Violation(
                    f"{worker.name} starts {id_.name}, which runs on {other.name} since {instance.started_ms}"
                )
        worker.trace(f"begins {id_.name}")
        self.running[key] = Running(id_, config, is_paused, self.kernel.now_ms, has_overlapped=overlaps)
        return self.running[key]

    def _is_excused(self, worker: SimulatedWorker) -> bool:
        """Whether the coordinator has removed the worker from the group and the worker might be unaware of this."""
        if worker.scope.is_paused:
            return True
        member_id = worker.member.generation.member_id
        if member_id in self.coordinator.members:
            return self.kernel.now_ms - worker.resumed_ms < 1_000  # it has not handled the events of its pause yet
        removed_ms = max(self.coordinator.lost_ms.get(member_id, 0), worker.resumed_ms)
        if not member_id:
            removed_ms = max(worker.resumed_ms, self.kernel.now_ms - workers.GRACEFUL_STOP_MS)
        return self.kernel.now_ms - removed_ms <= _NOTICE_MS

    def stop_begins(self, worker: SimulatedWorker, id_: InstanceId) -> None:
        """Record that a worker begins to stop a connector or task."""
        instance = self.running.get((worker, id_.connector, id_.task))
        if instance is not None:
            instance.is_stopping = True

    def end(self, worker: SimulatedWorker, id_: InstanceId) -> None:
        """Remove a connector or task."""
        instance = self.running.get((worker, id_.connector, id_.task))
        if instance is not None and instance.id == id_:
            worker.trace(f"ended {id_.name}")
            instance.has_ended = True
            del self.running[worker, id_.connector, id_.task]

    def end_all(self, worker: SimulatedWorker) -> None:
        """Remove the connectors and tasks of a crashed worker."""
        for key in [key for key in self.running if key[0] is worker]:
            self.running.pop(key).has_ended = True

    # Source offsets

    def process_records(self, worker: SimulatedWorker, instance: Running) -> Steps:
        """Run a source task: read its committed offset, and then commit increasing offsets."""
        key = self._offset_key(instance)
        while True:
            try:
                instance.position = yield from worker.request(lambda: self._read_offset(key))
                break
            except NoResponseError:
                yield 500
        while not instance.has_ended and not instance.is_stopping:
            yield self.kernel.rng.randint(2_000, 8_000)
            if not instance.is_paused and not instance.is_stopping:
                instance.position += 1
                yield from self._commit(worker, instance)

    def commit_last(self, worker: SimulatedWorker, instance: Running) -> Steps:
        """Commit the offset of a task that is being stopped."""
        if instance.position:
            yield from self._commit(worker, instance)

    def _offset_key(self, instance: Running) -> tuple[str, int]:
        assert instance.id.task is not None
        return instance.id.connector, instance.id.task

    def _read_offset(self, key: tuple[str, int]) -> int:
        encoded = json.dumps(key).encode()
        found = [record.value for record in self.offsets.records if record.key == encoded]
        return int(found[-1]) if found and found[-1] else 0

    def _commit(self, worker: SimulatedWorker, instance: Running) -> Steps:
        key, position = self._offset_key(instance), instance.position
        encoded = json.dumps(key).encode(), str(position).encode()

        def write() -> None:
            before, is_late = self._committed.get(key, (0, False))
            if position < before and not is_late and not instance.has_overlapped and not instance.has_ended:
                raise Violation(f"{worker.name} sets the offset of {instance.id.name} from {before} back to {position}")
            self.offsets.append([encoded], worker.name)
            self._committed[key] = position, instance.has_ended

        try:
            yield from worker.request(write, 4_000)
        except NoResponseError:
            return

    # Checks

    def _check_assignments(self, generation: int, metadata: Mapping[str, bytes], plan: Mapping[str, bytes]) -> None:
        """Check that `plan` assigns each connector or task to only one member, and that no other member still owns it.

        `metadata` contains what each member owned when it joined the generation.
        """
        found = {member: decode_assignment(data) for member, data in plan.items()}
        if any(each.error != NO_ERROR for each in found.values()):
            return
        held = {member: decode_metadata(data).held for member, data in metadata.items()}
        owned = {member: EMPTY if each is None else each.assigned for member, each in held.items()}
        for member, each in found.items():
            for other in found.keys() - {member}:
                for where, theirs in (("assigned to", found[other].assigned), ("held by", owned.get(other, EMPTY))):
                    if both := each.assigned & theirs:
                        raise Violation(f"generation {generation} assigns {both} to {member}; it is {where} {other}")

    def final_snapshot(self) -> ConfigSnapshot:
        """Return the state that results from all records of the config topic.

        These include the records that compaction has removed.
        """
        state = ConfigTopicState()
        for record in self.configs.all:
            state.apply(record.offset, record.key, record.value)
        return state.snapshot()

    def _check_stable_group(self) -> None:
        snapshot = self.final_snapshot()
        live = list(self.workers.values())
        for each in live:
            if not each.is_stable:
                raise Violation(f"{each.name} is not stable")
        self._check_configs(snapshot, live)
        self._check_instances(snapshot)
        self._check_balance(snapshot, live)
        if self._checks_statuses:
            self._check_statuses(snapshot, live)

    def _check_configs(self, snapshot: ConfigSnapshot, live: list[SimulatedWorker]) -> None:
        for name, expected in self.expected.items():
            state = snapshot.connectors.get(name)
            version = None if state is None else state.config["v"]
            if version not in {expected.acknowledged, *expected.possible}:
                raise Violation(f"{name} has the configuration {version}, not {expected.acknowledged}")
        for each in live:
            found = each.herder.snapshot.connectors
            for name in {**snapshot.connectors, **found}:
                if _comparable(found.get(name)) != _comparable(snapshot.connectors.get(name)):
                    raise Violation(
                        f"{each.name} has the state {found.get(name)} of {name}, the topic {snapshot.connectors[name]}"
                    )

    def _wanted(self, snapshot: ConfigSnapshot) -> dict[tuple[str, int | None], tuple[Mapping[str, str], bool]]:
        wanted: dict[tuple[str, int | None], tuple[Mapping[str, str], bool]] = {}
        for name, state in snapshot.connectors.items():
            if state.target is TargetState.STARTED:
                wanted[name, None] = state.config, False
                for number, config in enumerate(task_configs_of(state.config)):
                    wanted[name, number] = config, False
            elif state.target is TargetState.PAUSED:
                for number, paused in enumerate(state.task_configs):
                    wanted[name, number] = paused, True
        return wanted

    def _check_instances(self, snapshot: ConfigSnapshot) -> None:
        wanted = self._wanted(snapshot)
        found: dict[tuple[str, int | None], list[Running]] = {}
        for (_, name, task), instance in self.running.items():
            found.setdefault((name, task), []).append(instance)
        for key in {**wanted, **found}:
            running = found.get(key, [])
            if key not in wanted:
                raise Violation(f"{key} runs, but should not")
            if len(running) <= 1 and any(_is_failed(each, key) for each in self.workers.values()):
                continue  # the connector, the task, or the connector of the task has failed to start
            if len(running) != 1:
                raise Violation(f"{key} should run exactly once, but runs {len(running)} times")
            config, is_paused = wanted[key]
            if running[0].config != config or running[0].is_paused != is_paused:
                raise Violation(f"{key} runs with {running[0]}, not with {config}, paused {is_paused}")

    def _check_balance(self, snapshot: ConfigSnapshot, live: list[SimulatedWorker]) -> None:
        held = [each.group.assignment for each in live]
        everything = configured(snapshot)
        for kind in ("connectors", "tasks"):
            sizes = [len(getattr(each, kind)) for each in held]
            if sum(sizes) != len(getattr(everything, kind)):
                raise Violation(f"the workers hold {sizes} {kind}, but {len(getattr(everything, kind))} are configured")
            if max(sizes) - min(sizes) > 1:
                raise Violation(f"the workers hold {sizes} {kind}")

    def _check_statuses(self, snapshot: ConfigSnapshot, live: list[SimulatedWorker]) -> None:
        for owner in live:
            for name, task in _instances(owner.group.assignment):
                state = snapshot.connectors[name]
                if task is not None and state.target is TargetState.STOPPED:
                    continue
                expected = {"STARTED": State.RUNNING, "PAUSED": State.PAUSED, "STOPPED": State.STOPPED}[state.target]
                for reader in live:
                    status = reader.status_of(name, task)
                    if status is None or status.worker_id != owner.name or status.state not in (expected, State.FAILED):
                        raise Violation(f"{reader.name} shows {status} for {name}-{task}, which {owner.name} runs")


def _comparable(state: ConnectorState | None) -> object:
    """Return the state without the applied configuration, which compaction may have removed from the topic."""
    return None if state is None else (state.config, state.target, state.config_offset, list(state.task_configs))


def _instances(assignment: Assignment) -> list[tuple[str, int | None]]:
    return [*((name, None) for name in sorted(assignment.connectors)), *sorted(assignment.tasks)]


def _is_failed(worker: SimulatedWorker, key: tuple[str, int | None]) -> bool:
    """Whether the connector or task `key` has failed to start. For a task, check its connector, too."""
    name, task = key
    states: Any = worker.herder._connectors.get(name)
    if states is None:
        return False
    return any(each is not None and each.state is State.FAILED for each in map(states.instances.get, (task, None)))
