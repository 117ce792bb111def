"""One simulated worker: the real state machines (membership, group, herder, configs, statuses) with simulated I/O.

The simulated I/O replaces `client/membership.py`, `herder/worker_group.py`, `herder/distributed.py` and
`herder/instances.py`, and runs in virtual time. Connectors and tasks are objects in `World.running`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.herder import core, group_core, group_protocol, instance_effects
from headrace.herder.assignment import EMPTY, Assignment, configured
from headrace.herder.core import HerderCore
from headrace.herder.group_core import GroupCore, GroupEffect
from headrace.herder.group_protocol import Version
from headrace.herder.restart_plan import plan_restart
from headrace.runtime.spec import InstanceId
from headrace.stores import config_records
from headrace.stores.config_store import ConfigChange, PutTaskConfigs, RequestRestart, TargetState
from headrace.stores.config_topic_state import ConfigTopicState
from headrace.stores.status_records import StatusKey
from headrace.stores.status_store import Status
from headrace.stores.status_topic_state import StatusRecord, StatusTopicState
from headrace_broker.client.membership_core import MembershipCore, MemberState, NextStep
from support.herder_simulation.brokers import LogRecord, Topic
from support.herder_simulation.kernel import Event, Future, NoResponseError, Process, Scope, Steps, Timer

if TYPE_CHECKING:
    from support.herder_simulation.world import World

SESSION_MS, HEARTBEAT_MS, REBALANCE_MS, GRACEFUL_STOP_MS = 10_000, 3_000, 20_000, 4_000
REQUEST_TIMEOUT_MS, JOIN_TIMEOUT_MS, SYNC_TIMEOUT_MS = 8_000, REBALANCE_MS + 5_000, 3_000
RETRY_MS, READ_ATTEMPTS_MAX = 300, 5


class NotLeaderError(Exception):
    """Only the leader can execute the request."""


class SimulatedWorker:
    """A simulated worker, from its start to its end. A restart creates another object with the same name."""

    def __init__(self, world: World, name: str, version: Version, max_delay_ms: int) -> None:
        self.world, self.kernel, self.name = world, world.kernel, name
        self.scope = Scope(world.kernel)
        self.configs = ConfigTopicState()
        self.statuses = StatusTopicState()
        self.herder = HerderCore()
        self.group = GroupCore(name, version, max_delay_ms)
        self.max_delay_ms = max_delay_ms
        self.member = self._new_member()
        self.stable = Event()
        self.is_unreachable = False
        self._is_repairing = False
        self.resumed_ms = 0
        self._positions = {"configs": 0, "statuses": 0}
        self._read = {"configs": Future(), "statuses": Future()}
        self._rejoin = Event()
        self._run: Process | None = None
        self._heartbeats: Process | None = None
        self._timer: Timer | None = None
        self._failed_reads = 0
        self._stopped = Future()  # completes each time a connector or task ends
        self._submissions: dict[str, Process] = {}
        self._is_writing = False
        self._written = Future()
        self._status_queue: list[StatusRecord] = []
        self._queued = Event()

    def _new_member(self) -> MembershipCore:
        return MembershipCore(
            group_id="g",
            protocol_type="connect",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def trace(self, text: str) -> None:
        """Add a line to the history."""
        self.kernel.trace(f"{self.name}: {text}")

    # Life of the process

    def start(self) -> None:
        """Read the topics, then join the group."""
        self.trace("starts")
        for record in self.world.configs.read(0):
            self.configs.apply(record.offset, record.key, record.value)
        for record in self.world.statuses.read(0):
            self.statuses.apply(record.offset, record.key, record.value)
        self._positions = {"configs": self.world.configs.end, "statuses": self.world.statuses.end}
        snapshot = self.configs.snapshot()
        self.group.on_snapshot(snapshot)
        self.herder.assign(Assignment())
        self.carry_out(self.herder.on_snapshot(snapshot))
        self.scope.spawn(self._follow("configs", self.world.configs, self._on_config))
        self.scope.spawn(self._follow("statuses", self.world.statuses, self._on_status))
        self.scope.spawn(self._write_statuses())
        self._start_membership()

    def crash(self) -> None:
        """Kill the process as SIGKILL does. Its connectors and tasks end immediately."""
        self.trace("crashes")
        self.scope.is_dead = True
        self.world.end_all(self)

    def pause(self) -> None:
        """Pause the process as SIGSTOP does.

        The connectors and tasks of the process count as running, even after the worker's session has expired.
        """
        self.trace("is paused")
        self.scope.is_paused = True

    def resume(self) -> None:
        """Let the process continue."""
        self.trace("continues")
        self.resumed_ms = self.kernel.now_ms
        self.scope.resume()

    # Requests to brokers

    def request(self, call: Callable[[], Any], timeout_ms: float = REQUEST_TIMEOUT_MS) -> Steps:
        """Send a request to a broker, which handles the request with `call`. Return the result of `call`.

        Raises NoResponseError if there is no response within `timeout_ms`.
        """
        response, rng = Future(), self.kernel.rng
        if self.is_unreachable:
            delay_ms = min(timeout_ms, REQUEST_TIMEOUT_MS) if rng.random() < 0.3 else 50
            self.scope.call_later(delay_ms, lambda: response.set(NoResponseError()))
            return (yield response)

        def arrive() -> None:
            result = call()
            if isinstance(result, Future):
                result.then(respond)
            else:
                respond(result)

        def respond(result: Any) -> None:
            if not self.is_unreachable:
                self.kernel.call_later(self.world.latency_ms(), lambda: self.scope.guard(lambda: response.set(result)))

        self.kernel.call_later(self.world.latency_ms(), arrive)
        self.scope.call_later(timeout_ms, lambda: response.set(NoResponseError()))
        return (yield response)

    # Reading the topics

    def _follow(self, name: str, topic: Topic, apply: Callable[[LogRecord], None]) -> Steps:
        appended = Future()

        def notify() -> None:
            if not self.scope.is_dead:
                nonlocal appended
                current, appended = appended, Future()
                current.set()

        topic.listeners.append(notify)
        while True:
            if self._positions[name] >= topic.end:
                yield appended
                continue
            yield self.world.read_delay_ms()
            if self.is_unreachable:
                yield RETRY_MS
                continue
            records, end = topic.read(self._positions[name]), topic.end
            self._positions[name] = end
            for record in records:
                apply(record)
            read, self._read[name] = self._read[name], Future()
            read.set()

    def read_to_end(self, timeout_ms: int = 30_000) -> Steps:
        """Read the config topic to its end. Raises NoResponseError."""
        deadline_ms = self.kernel.now_ms + timeout_ms
        end = yield from self.request(lambda: self.world.configs.end, timeout_ms)
        while self._positions["configs"] < end:
            if self.kernel.now_ms > deadline_ms:
                raise NoResponseError
            progress = Future()
            self._read["configs"].then(progress.set)
            self.scope.call_later(deadline_ms - self.kernel.now_ms + 1, progress.set)
            yield progress

    def _on_config(self, record: LogRecord) -> None:
        change = self.configs.apply(record.offset, record.key, record.value)
        if change is None:
            return
        snapshot = self.configs.snapshot()
        effects = self.herder.on_snapshot(snapshot)
        if isinstance(change, RequestRestart):
            statuses = self.statuses.get(change.connector)
            plan = plan_restart(statuses, include_tasks=change.include_tasks, only_failed=change.only_failed)
            effects += self.herder.restart(change.connector, plan, shows_restarting=True)
        self.carry_out(effects)
        self._spawn_group(self.group.on_snapshot(snapshot))
        self._repair_task_configs()

    def append(self, change: ConfigChange) -> Steps:
        """Write a change to the config topic. Raises NoResponseError."""
        while self._is_writing:
            yield self._written
        self._is_writing = True
        try:
            yield from self.read_to_end()
            for step in config_records.steps(change):
                for key, value in step:  # a leader may die between two records
                    record = key.encode(), value
                    yield from self.request(lambda record=record: self.world.configs.append([record], self.name))
                yield from self.read_to_end()
        finally:
            self._is_writing = False
            written, self._written = self._written, Future()
            written.set()

    # Membership (client/membership.py)

    def _start_membership(self) -> None:
        if self._run is None or self._run.done.is_done:
            self._rejoin.clear()
            self._run = self.scope.spawn(self._run_membership())

    def _run_membership(self) -> Steps:
        while True:
            if self.member.state is MemberState.UNJOINED:
                yield from self._on_membership_lost()
            else:
                self.stable.clear()
                yield from self._carry_out_group(self.group.on_join_prepare())
            self._stop_heartbeats()
            self._rejoin.clear()
            assignment = yield from self._join()
            self._heartbeats = self.scope.spawn(self._send_heartbeats())
            yield from self._on_join_complete(assignment)
            yield from self._rejoin.wait()

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            self._heartbeats = None

    def _join(self) -> Steps:
        while True:
            try:
                step, assignment = yield from self._join_once()
            except NoResponseError:
                step, assignment = NextStep.FIND_COORDINATOR, b""
            if step is NextStep.ASSIGNED:
                return assignment
            assert step is not NextStep.FAIL, f"{self.name}: {self.member.last_code}"
            must_wait = step in (NextStep.JOIN_LATER, NextStep.FIND_COORDINATOR)
            if must_wait and self.member.on_no_response(self.kernel.now_ms) is NextStep.JOIN_AS_NEW_MEMBER:
                yield from self._on_membership_lost()
            if step is NextStep.JOIN_AS_NEW_MEMBER:
                yield from self._on_membership_lost()
            if must_wait:
                yield RETRY_MS

    def _join_once(self) -> Steps:
        member, coordinator = self.member, self.world.coordinator
        request = member.join_request(group_protocol.protocols(self.group.metadata(), self.group.highest))
        response = yield from self.request(lambda: coordinator.join(request), JOIN_TIMEOUT_MS)
        step = member.on_join(response)
        if step not in (NextStep.LEAD, NextStep.FOLLOW):
            return step, b""
        assignments: Mapping[str, bytes] = {}
        if step is NextStep.LEAD:
            listed = {each.member_id: bytes(each.metadata) for each in response.members}
            if self.group.is_behind(listed):
                yield from self._read_configs()
            generation = member.generation
            assignments = self.group.compute_assignments(
                generation.generation_id, generation.protocol, generation.member_id, listed, self.kernel.now_ms
            )
        sync = member.sync_request(assignments)
        synced = yield from self.request(lambda: coordinator.sync(sync), JOIN_TIMEOUT_MS)
        return member.on_sync(synced, self.kernel.now_ms), synced.assignment

    def _send_heartbeats(self) -> Steps:
        member, failures = self.member, 0
        while True:
            yield RETRY_MS if failures else max(member.heartbeat_due_ms() - self.kernel.now_ms, 0)
            now_ms = self.kernel.now_ms
            if member.is_session_expired(now_ms):
                member.reset()
                self._request_rejoin("the session expired")
                return
            request, timeout_ms = member.heartbeat_request(now_ms), member.session_remaining_ms(now_ms)
            try:
                code = yield from self.request(
                    lambda request=request: self.world.coordinator.heartbeat(request), timeout_ms
                )
            except NoResponseError:
                failures += 1
                continue
            step = member.on_heartbeat(code, self.kernel.now_ms)
            failures = failures + 1 if step is NextStep.FIND_COORDINATOR else 0
            if step is NextStep.JOIN:
                self._request_rejoin("the group rebalances")
            elif step in (NextStep.JOIN_AS_NEW_MEMBER, NextStep.FAIL):
                member.reset()
                self._request_rejoin("the coordinator removed the member")
                return

    def _request_rejoin(self, reason: str) -> None:
        self.trace(f"rejoins: {reason}")
        self.member.reason = reason
        self._rejoin.set()

    def leave(self) -> Steps:
        """Leave the group."""
        for process in (self._run, self._heartbeats):
            if process is not None:
                process.cancel()
        self._run = self._heartbeats = None
        member_id = self.member.generation.member_id
        self.member.reset()
        if member_id:
            try:
                yield from self.request(lambda: self.world.coordinator.leave(member_id))
            except NoResponseError:
                return

    @property
    def is_stable(self) -> bool:
        """Whether no rebalance is in progress."""
        return self.stable.is_set and self.member.state is MemberState.STABLE and not self._rejoin.is_set

    # The group (herder/worker_group.py)

    def _on_join_complete(self, assignment: bytes) -> Steps:
        if self._timer is not None:
            self._timer.cancel()
        generation = self.member.generation
        effects = self.group.on_assignment(
            generation.generation_id, generation.protocol, assignment, generation.member_id
        )
        role = "leader" if self.group.is_leader else "follower"
        self.trace(
            f"{generation.member_id} generation {generation.generation_id} {role}: {_text(self.group.assignment)}"
        )
        yield from self._carry_out_group(effects)
        if self.member.state is MemberState.STABLE and not self._rejoin.is_set:
            self.stable.set()
            if self.group.is_leader:
                self._remove_old_statuses()
                self._repair_task_configs()

    def _on_membership_lost(self) -> Steps:
        self.stable.clear()
        yield from self._carry_out_group(self.group.on_membership_lost())

    def _spawn_group(self, effects: Sequence[GroupEffect]) -> None:
        if effects:
            self.scope.spawn(self._carry_out_group(effects))

    def _carry_out_group(self, effects: Sequence[GroupEffect]) -> Steps:
        for effect in effects:
            match effect:
                case group_core.Run(assignment):
                    self.carry_out(self.herder.assign(assignment))
                case group_core.AwaitStop(assignment):
                    yield from self._wait_until_stopped(assignment)
                case group_core.ReportStop(assignment):
                    self.scope.spawn(self._report_stop(assignment))
                case group_core.ReadConfigs():
                    if not (yield from self._read_configs()):
                        self.scope.spawn(self._leave_until_readable())
                        return
                case group_core.Rejoin(reason, 0):
                    self.stable.clear()
                    self._request_rejoin(reason)
                case group_core.Rejoin(reason, delay_ms):
                    self._timer = self.scope.call_later(delay_ms, lambda reason=reason: self._request_rejoin(reason))

    def _report_stop(self, assignment: Assignment) -> Steps:
        yield from self._wait_until_stopped(assignment)
        yield from self._carry_out_group(self.group.stopped(assignment))

    def _wait_until_stopped(self, assignment: Assignment) -> Steps:
        names = {*assignment.connectors, *(name for name, _ in assignment.tasks)}
        while any(self.herder.runs(name, assignment) for name in names):
            yield self._stopped

    def _read_configs(self) -> Steps:
        try:
            yield from self.read_to_end(SYNC_TIMEOUT_MS)
        except NoResponseError:
            return False
        self._failed_reads = 0
        self.group.on_snapshot(self.configs.snapshot())
        return True

    def _leave_until_readable(self) -> Steps:
        yield from self.leave()
        while not (yield from self._read_configs()):
            self._failed_reads += 1
            if self._failed_reads == READ_ATTEMPTS_MAX:
                yield from self._on_membership_lost()
            yield max(self.max_delay_ms / 10, 100)
        self._start_membership()

    # Connectors and tasks (herder/instances.py)

    def carry_out(self, effects: Sequence[instance_effects.Effect]) -> None:
        """Execute effects of the herder's state machine."""
        for effect in effects:
            match effect:
                case instance_effects.PutStatus(name, task, state, _, trace, version):
                    status = Status(state, self.name, self.group.generation, trace, version)
                    self._send_statuses(self.statuses.put(name, task, status))
                case instance_effects.StartConnector(id_) | instance_effects.StartTask(id_):
                    self.scope.spawn(self._start(effect, id_))
                case instance_effects.StopInstance(id_):
                    self.scope.spawn(self._stop(id_))
                case instance_effects.PauseTask(id_) | instance_effects.ResumeTask(id_):
                    self._set_paused(id_, isinstance(effect, instance_effects.PauseTask))
                case instance_effects.RequestTaskConfigs(id_):
                    self.scope.spawn(self._request_task_configs(id_))
                case instance_effects.RetryTaskConfigs(id_, delay_ms):
                    self.scope.call_later(delay_ms, lambda id_=id_: self.carry_out(self.herder.retry_due(id_)))
                case instance_effects.StoreTaskConfigs(name, configs):
                    if (earlier := self._submissions.pop(name, None)) is not None:
                        earlier.cancel()
                    self._submissions[name] = self.scope.spawn(self._submit(name, configs))

    def _start(self, effect: instance_effects.StartConnector | instance_effects.StartTask, id_: InstanceId) -> Steps:
        config = effect.config if isinstance(effect, instance_effects.StartConnector) else effect.task_config
        is_paused = isinstance(effect, instance_effects.StartTask) and effect.is_paused
        instance = self.world.begin(self, id_, config, is_paused=is_paused)
        yield self.kernel.rng.randint(1, 400)
        if instance.has_ended:
            return
        if self.world.has_faults and self.kernel.rng.random() < 0.03:
            self.world.end(self, id_)
            self.carry_out(self.herder.start_failed(id_, "simulated failure"))
            self._notify_stopped()  # if the start is no longer wanted, its failure ends the connector or task
            return
        if id_.task is not None:
            self.scope.spawn(self.world.process_records(self, instance))
        self.carry_out(self.herder.started(id_, "1"))
        if id_.task is not None:
            self.carry_out(self.herder.state_changed(id_, "PAUSED" if instance.is_paused else "RUNNING", None))

    def _set_paused(self, id_: InstanceId, is_paused: bool) -> None:
        instance = self.world.running.get((self, id_.connector, id_.task))
        if instance is not None:
            instance.is_paused = is_paused
            self.carry_out(self.herder.state_changed(id_, "PAUSED" if is_paused else "RUNNING", None))

    def _stop(self, id_: InstanceId) -> Steps:
        rng = self.kernel.rng
        self.world.stop_begins(self, id_)
        yield rng.randint(1, 300) if rng.random() < 0.9 else rng.randint(1, GRACEFUL_STOP_MS)
        instance = self.world.running.get((self, id_.connector, id_.task))
        if instance is not None and id_.task is not None:
            yield from self.world.commit_last(self, instance)
        self.world.end(self, id_)
        self.carry_out(self.herder.stopped(id_))
        self._notify_stopped()

    def _notify_stopped(self) -> None:
        stopped, self._stopped = self._stopped, Future()
        stopped.set()

    def _request_task_configs(self, id_: InstanceId) -> Steps:
        state = self.herder.snapshot.connectors.get(id_.connector)
        yield self.kernel.rng.randint(1, 300)
        if state is None or (self.world.has_faults and self.kernel.rng.random() < 0.05):
            self.carry_out(self.herder.task_configs_failed(id_, "simulated failure", is_fatal=False))
        else:
            self.carry_out(self.herder.task_configs_generated(id_, task_configs_of(state.config)))

    # Task configurations, from the connector's owner to the leader (herder/distributed.py)

    def _submit(self, name: str, configs: Sequence[Mapping[str, str]]) -> Steps:
        backoff_ms = 250
        while self.group.assignment.contains(name, None):
            try:
                yield from self._submit_once(name, configs)
                return
            except (NoResponseError, NotLeaderError):
                state = self.herder.snapshot.connectors.get(name)
                if state is None or state.target is TargetState.STOPPED:
                    return
            yield backoff_ms
            backoff_ms = min(2 * backoff_ms, 60_000)

    def _submit_once(self, name: str, configs: Sequence[Mapping[str, str]]) -> Steps:
        yield from self.wait_until_stable()
        leader_url = self.group.leader_url
        if self.group.is_leader:
            yield from self._store_if_changed(name, configs)
        elif leader_url is None:
            raise NotLeaderError
        else:
            yield from self.world.call_worker(
                self, leader_url, lambda leader: leader.put_task_configs(name, json.loads(json.dumps(list(configs))))
            )

    def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> Steps:
        """Store the task configurations that another worker's connector generated."""
        yield from self.prepare_change()
        yield from self._store_if_changed(name, configs)

    def _store_if_changed(self, name: str, configs: Sequence[Mapping[str, str]]) -> Steps:
        state = self.herder.snapshot.connectors.get(name)
        if state is None or (configs and state.target is TargetState.STOPPED):
            raise NotLeaderError
        if list(configs) != list(state.task_configs) or state.config != state.applied_config:
            yield from self.append(PutTaskConfigs(name, configs))

    def _repair_task_configs(self) -> None:
        """Write task configurations again, as herder/task_configs_repair.py does."""
        if self.group.is_leader and not self._is_repairing and self._to_repair():
            self._is_repairing = True
            self.scope.spawn(self._run_task_configs_repair())

    def _to_repair(self) -> list[str]:
        connectors = self.herder.snapshot.connectors
        return [name for name, state in connectors.items() if state.tasks_to_rewrite() is not None]

    def _run_task_configs_repair(self) -> Steps:
        try:
            while self.group.is_leader and (names := self._to_repair()):
                tasks = self.herder.snapshot.connectors[names[0]].tasks_to_rewrite()
                assert tasks is not None
                try:
                    yield from self.append(PutTaskConfigs(names[0], tasks))
                except NoResponseError:
                    yield RETRY_MS
        finally:
            self._is_repairing = False

    def wait_until_stable(self) -> Steps:
        """Wait until no rebalance is in progress."""
        while not self.is_stable:
            self.stable.clear()
            yield from self.stable.wait()

    def prepare_change(self) -> Steps:
        """Wait until no rebalance is in progress.

        Raises NotLeaderError if this worker is not the leader at that time.
        """
        yield from self.wait_until_stable()
        if not self.group.is_leader:
            raise NotLeaderError

    # Statuses

    def _on_status(self, record: LogRecord) -> None:
        read = self.statuses.apply(record.offset, record.key, record.value)
        if read is not None and core.is_outdated(read[1], self.name, self.group.generation):
            self.carry_out(self.herder.status_replaced(read[0].connector, read[0].task))

    def _remove_old_statuses(self) -> None:
        wanted = configured(self.herder.snapshot) | self.group.reported
        for name in self.statuses.task_counts():
            if name not in wanted.connectors:
                self._send_statuses(self.statuses.remove(name, None))
                continue
            for number in self.statuses.get(name).tasks:
                if (name, number) not in wanted.tasks:
                    self._send_statuses(self.statuses.remove(name, number))

    def _send_statuses(self, records: Sequence[StatusRecord]) -> None:
        self._status_queue += records
        if self._status_queue:
            self._queued.set()

    def _write_statuses(self) -> Steps:
        while True:
            yield from self._queued.wait()
            while self._status_queue:
                record = self._status_queue[0]
                pair = record.encoded_key, record.value
                try:
                    offset = yield from self.request(
                        lambda pair=pair: self.world.statuses.append([pair], self.name), REQUEST_TIMEOUT_MS
                    )
                except NoResponseError:
                    yield RETRY_MS
                    continue
                self._status_queue.pop(0)
                self.statuses.on_written(record.key, offset)
            self._queued.clear()

    def status_of(self, connector: str, task: int | None) -> Status | None:
        """Return the status of a task, or of its connector if `task` is None, as this worker's REST API shows it."""
        statuses = self.statuses.get(connector)
        return statuses.connector if task is None else statuses.tasks.get(task)


def task_configs_of(config: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the task configurations that a connector generates.

    Some changes of the connector's configuration do not change the task configurations.
    """
    return [{"n": str(number), "v": config["task.v"]} for number in range(int(config["tasks"]))]


def _text(assignment: Assignment) -> str:
    names = sorted(assignment.connectors) + [f"{name}-{number}" for name, number in sorted(assignment.tasks)]
    return " ".join(names) or ("nothing" if assignment == EMPTY else "")


__all__ = ["NotLeaderError", "SimulatedWorker", "StatusKey", "task_configs_of"]
