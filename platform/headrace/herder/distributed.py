"""The distributed herder: one worker of a group, with configurations, offsets and statuses in compacted topics.

Every worker executes requests that only read. Only the leader executes changes. The other workers raise `ForwardError`,
and the REST server forwards the request. Requests that arrive during a rebalance wait until it has completed. While the
worker starts, all requests about connectors wait until it has read the internal topics and joined the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.herder import leader_check, log_levels, rest_client
from headrace.herder.assignment import Assignment, configured
from headrace.herder.base import BaseHerder
from headrace.herder.broker_wait import BrokerWait
from headrace.herder.connector_offsets import ConnectorOffsets
from headrace.herder.errors import BadRequestError, ForwardError, HerderError, NotFoundError, WorkerStoppingError
from headrace.herder.group_core import GroupCore
from headrace.herder.group_protocol import Version
from headrace.herder.herder import ConnectorStatus, WorkerMetrics
from headrace.herder.instances import Instances
from headrace.herder.old_statuses import OldStatuses
from headrace.herder.plugin_calls import ValidConfig
from headrace.herder.request_signature import verify
from headrace.herder.rest_client import Kind
from headrace.herder.restart_plan import RestartPlan, plan_restart
from headrace.herder.session_keys import SessionKeyRotation
from headrace.herder.stages import stage
from headrace.herder.task_configs_repair import TaskConfigsRepair
from headrace.herder.task_configs_submission import TaskConfigsSubmission
from headrace.herder.worker_group import WorkerGroup
from headrace.runtime import client_configs
from headrace.runtime.spec import InstanceId
from headrace.runtime.task_metrics import TaskMetrics
from headrace.runtime.worker import Events, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores import internal_topics
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    DeleteConnector,
    PutConnector,
    PutLogLevel,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.internal_topics import InternalTopic
from headrace.stores.kafka_config_store import KafkaConfigStore
from headrace.stores.kafka_offset_store import KafkaOffsetStore
from headrace.stores.kafka_status_store import KafkaStatusStore
from headrace.stores.topic_log import CLOSE_TIMEOUT_MS, TopicLogs
from headrace_broker.client.admin import Admin
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
TYPES_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0
"""The longest time that a shutdown waits for the brokers after the connectors and tasks have stopped.

Connectors and tasks stop within task.shutdown.graceful.timeout.ms.
"""
_STATUSES_TIMEOUT_S = 2.0
_CONFIGS_TIMEOUT_S = 1.0
_LEAVE_TIMEOUT_S = STOP_TIMEOUT_S - CLOSE_TIMEOUT_MS / 1000


class DistributedHerder(BaseHerder):
    """One worker of a group. Call `start` first and `stop` last.

    `url` is the address at which the other workers of the group reach this worker's REST server.
    """

    uses_brokers = True

    def __init__(self, config: WorkerConfig, worker_id: str, url: str, make_worker: Callable[[Events], Worker]) -> None:
        self._properties = client_configs.worker_properties(config.properties)
        self._logs = TopicLogs(self._properties)
        configs = KafkaConfigStore(self._logs, config["config.storage.topic"])
        self._connector_offsets = ConnectorOffsets(
            config,
            KafkaOffsetStore(self._logs, config["offset.storage.topic"]),
            config_of=self._config_of,
            resolve=lambda settings: self._instances.worker.resolve(settings),
            is_in_use=lambda name: bool(self._instances.core.instances(name)),
        )
        offsets = self._connector_offsets
        statuses = KafkaStatusStore(self._logs, config["status.storage.topic"])
        instances = Instances(
            config,
            worker_id,
            make_worker,
            statuses=statuses,
            offsets=offsets,
            store_task_configs=self._submit_task_configs,
            status_generation=lambda: self._group_core.generation,
            removes_statuses=False,
            may_commit=self._may_commit,
            check_writer=self._check_writer,
        )
        super().__init__(config, instances, configs=configs, statuses=statuses, offsets=offsets)
        statuses.listener = instances.status_read
        self._old_statuses = OldStatuses(statuses, instances)
        self._checked_writers = set[str]()
        highest = Version.of_config(config["connect.protocol"])
        self._group_core = GroupCore(url, highest, config["scheduled.rebalance.max.delay.ms"])
        self._group: WorkerGroup | None = None
        self._cluster: Cluster | None = None
        self._task_configs_repair = TaskConfigsRepair(
            configs, lambda: self._snapshot, lambda: self._group_core.is_leader, self._lock
        )
        self._submission = TaskConfigsSubmission(
            config,
            self._group_core,
            lambda: self._snapshot,
            store=self._store_if_changed,
            reject=instances.task_configs_rejected,
            wait_until_stable=lambda: self._running_group.wait_until_stable(),
            wait_until_replaced=lambda url: self._wait_until_replaced(lambda: self._group_core.leader_url, url),
            spawn=self._spawn,
        )
        self._session_keys = SessionKeyRotation(
            config, configs, lambda: self._snapshot, self._writes_session_keys, self._spawn
        )
        self._checked_leader: str | None = None  # the leader whose internal topics were compared with this worker's
        self._tasks: set[asyncio.Task[Any]] = set()
        self._type_lookups: set[asyncio.Task[None]] = set()
        self._broker_wait = BrokerWait(self._properties["bootstrap.servers"])
        self._stopping = asyncio.Event()
        self._has_read_topics = asyncio.Event()
        self._has_joined = asyncio.Event()
        self._rebalanced = asyncio.Event()  # set and replaced when a rebalance has completed

    async def start(self) -> None:
        """Wait for the brokers, create the internal topics, read them, and join the group.

        If the brokers stop responding meanwhile, wait for them again. Raises InternalTopicError.
        """
        await self._broker_wait.run(self._ensure_internal_topics)
        await self._broker_wait.run(self._start_logs)
        await self._statuses.start()
        snapshot = await self._configs.start(self._on_config_change)
        self._group_core.on_snapshot(snapshot)
        self._instances.core.assign(Assignment())
        self._instances.carry_out(self._instances.core.on_snapshot(snapshot))
        self._find_types(snapshot)
        config = self.config
        await self._broker_wait.run(self._open_cluster)
        assert self._cluster is not None
        self._group = WorkerGroup(
            self._cluster,
            self._group_core,
            self,
            self._configs,
            group_id=config["group.id"],
            session_timeout_ms=config["session.timeout.ms"],
            heartbeat_interval_ms=config["heartbeat.interval.ms"],
            rebalance_timeout_ms=config["rebalance.timeout.ms"],
            sync_timeout_ms=config["worker.sync.timeout.ms"],
            max_delay_ms=config["scheduled.rebalance.max.delay.ms"],
        )
        self._has_read_topics.set()
        self._group.start()

    async def wait_until_started(self) -> None:
        """Wait until the worker has read the internal topics and has its first assignment.

        Raises WorkerStoppingError.
        """
        if self._has_joined.is_set():
            return
        with stage("reading to the end of internal topics"):
            await self._wait_unless_stopping(self._has_read_topics.wait())
        with stage("ensuring membership in the cluster"):
            await self._wait_unless_stopping(self._has_joined.wait())

    async def stop(self) -> None:
        """Stop all tasks (which commit their offsets) and connectors, leave the group, and end all processes.

        Without brokers, this takes at most task.shutdown.graceful.timeout.ms and `STOP_TIMEOUT_S`.
        """
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        self._session_keys.stop()
        stopped = self._group_core.assignment
        await self._instances.stop()
        has_left = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                has_left = await self._leave_group(stopped)
        if not has_left:
            log.warning(
                "Group %s: the brokers did not respond; the worker stops without leaving its group. The other workers "
                "notice this after session.timeout.ms=%d",
                self.config["group.id"],
                self.config["session.timeout.ms"],
            )
        await self._close_clients()
        await self._instances.worker.close()

    async def _leave_group(self, stopped: Assignment) -> bool:
        """Complete changes of configurations, write the statuses of the stopped instances, and leave the group.

        Return whether the group was left.
        """
        if self._group is None:
            return True
        with suppress(TimeoutError):  # a request that is changing a connector would fail if the clients were closed
            async with asyncio.timeout(_CONFIGS_TIMEOUT_S):
                await self._configs.stop()
        self._instances.put_unassigned(stopped)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATUSES_TIMEOUT_S):
                await self._statuses.stop()
        return await self._group.stop()

    async def _close_clients(self) -> None:
        await self._connector_offsets.close()
        await self._logs.stop()
        if self._cluster is not None:
            await self._cluster.close()

    async def _start_logs(self) -> None:
        try:
            await self._logs.start()
        except (ClientError, TimeoutError):
            await self._logs.stop()
            raise

    async def _open_cluster(self) -> None:
        self._cluster = await Cluster.open(ClientConfig.from_properties(self._properties, kind="admin"))

    async def _ensure_internal_topics(self) -> None:
        config = ClientConfig.from_properties(self._properties, kind="admin")
        report = self._broker_wait.report
        cluster = await Cluster.open(config, timeout_ms=CONNECT_TIMEOUT_S * 1000, on_retry=report)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                admin = await Admin.open(config, cluster=cluster)
                await internal_topics.ensure(admin, _internal_topics(self.config))
        except TimeoutError as error:  # it has no text, but the error of the last attempt has
            raise cluster.retried_error or error from error
        finally:
            await cluster.close()

    def _may_commit(self, instance: InstanceId) -> bool:
        is_member = self._group is not None and self._group.has_session
        return is_member and self._group_core.may_commit(instance.connector, instance.task)

    def _runs(self, connector: str, task: int | None) -> bool:
        return self._group_core.assignment.contains(connector, task)

    def metrics(self) -> WorkerMetrics:
        """Return the measurements of the worker and of its rebalances."""
        return replace(super().metrics(), rebalances=None if self._group is None else self._group.rebalance_metrics())

    def _config_of(self, name: str) -> Mapping[str, str] | None:
        state = self._snapshot.connectors.get(name)
        return None if state is None else state.config

    @property
    def _broker_error(self) -> str | None:
        if self._group is None:
            return self._broker_wait.error
        return "; ".join(filter(None, [self._group.error, *self._logs.errors.values()])) or None

    # Requests

    async def _prepare_change(self, connector_class: str | None = None) -> None:
        await self._wait_until_stable()
        if not self._group_core.is_leader:
            raise self._forward_error(
                "Only the leader can change connectors", lambda: self._group_core.leader_url, connector_class
            )

    async def _wait_until_stable(self) -> None:
        """Wait until no rebalance is in progress. Raises WorkerStoppingError, ForwardError."""
        group = self._running_group
        if self._stopping.is_set():
            raise WorkerStoppingError
        if group.is_stable:
            return
        with stage("ensuring membership in the cluster"):
            await self._wait_unless_stopping(group.wait_until_stable())

    async def _wait_unless_stopping(self, condition: Coroutine[Any, Any, object]) -> None:
        """Wait for a condition. Raises WorkerStoppingError if the worker shuts down before or meanwhile."""
        waits = [asyncio.ensure_future(each) for each in (condition, self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if self._stopping.is_set():
            raise WorkerStoppingError

    async def _check(self, config: Mapping[str, str]) -> ValidConfig:
        """Validate a configuration. Raises WorkerStoppingError instead of the error that the shutdown causes."""
        try:
            return await super()._check(config)
        except BadRequestError:
            raise
        except HerderError:
            if self._stopping.is_set():
                raise WorkerStoppingError from None
            raise

    async def _append(self, change: ConfigChange, description: str) -> None:
        """Append a change to the config topic. Raises WorkerStoppingError, HerderError."""
        if self._stopping.is_set():
            raise WorkerStoppingError
        self._check_membership()
        await super()._append(change, description)

    def _check_membership(self) -> None:
        """Check that no other worker can be the leader. Raises HerderError."""
        if not (self._running_group.has_session and self._group_core.was_leader):
            raise HerderError(
                "This worker is no longer the leader of the group, or has lost its membership, and another worker may "
                "be the leader; the request can be safely retried"
            )

    async def _wait_until_tasks_end(self, name: str) -> None:
        """Wait until no worker runs a task of a stopped connector. Raises WorkerStoppingError, ForwardError."""
        await super()._wait_until_tasks_end(name)
        while self._group_core.may_run_task(name):
            await self._rebalanced.wait()  # the worker of a task joins again after the task has stopped
            await self._prepare_change()

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Restart the selected instances (KIP-745). Return their statuses before the restart.

        With `include_tasks` or `only_failed`, return as soon as the restart request is in the config topic, because
        several workers execute it. Otherwise, wait until the connector has started. Raises NotFoundError, ForwardError,
        and HerderError if the connector fails to start.
        """
        if include_tasks or only_failed:
            await self._prepare_change()
            return await self._request_restart(name, include_tasks=include_tasks, only_failed=only_failed)
        await self._find_owner(name, None)
        status = self.status(name)
        restarted = [each for each in self._instances.core.instances(name) if each.task is None]
        self._instances.carry_out(self._instances.core.restart(name, RestartPlan(connector=True, tasks=[])))
        with stage(f"stopping restarted connector {name}"):
            for each in restarted:
                await self._instances.wait_until_ended(each)
        with stage(f"starting connector {name}"):
            await self._instances.settled(name)
        self._check_start(name, None)
        return status

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError, ForwardError."""
        if number < len(self._state(name, "Unknown connector: {}").task_configs):
            await self._find_owner(name, number)
        await super().restart_task(name, number)

    async def task_metrics(self, name: str, task: int) -> TaskMetrics | None:
        """Return the measurements of a task, or None if it does not run. Raises NotFoundError, ForwardError."""
        self.task_status(name, task)
        if task < len(self._state(name).task_configs):
            await self._find_owner(name, task)
        return await super().task_metrics(name, task)

    async def _find_owner(self, name: str, task: int | None) -> None:
        """Check that this worker runs the connector (task None) or task. Raises NotFoundError, ForwardError."""
        await self._wait_until_stable()
        self._state(name, "Unknown connector: {}")
        if self._group_core.assignment.contains(name, task):
            return
        group = self._group_core
        raise self._forward_error(
            "Another worker runs this connector or task",
            lambda: group.owner_url(name, task) if group.is_leader else group.leader_url,
        )

    def _forward_error(
        self, text: str, find_url: Callable[[], str | None], connector_class: str | None = None
    ) -> ForwardError:
        url = find_url()
        return ForwardError(text, url, lambda: self._wait_until_replaced(find_url, url), connector_class)

    async def _wait_until_replaced(self, find_url: Callable[[], str | None], url: str | None) -> None:
        while find_url() == url:
            await self._rebalanced.wait()

    async def set_group_log_level(self, logger: str, level: str) -> None:
        """Set a log level in all workers of the group (KIP-976). Raises KeyError for an unknown level, HerderError.

        The name is written unchanged, because workers of Apache Kafka have other loggers.
        """
        log_levels.names_of(self.config, logger, level)
        # Every worker may write log levels, even if it is not a member of the group at the moment.
        await super()._append(PutLogLevel(logger, level), f"writing the log level of {logger} to the config topic")

    async def put_task_configs(
        self, name: str, body: bytes, configs: Sequence[Mapping[str, str]], headers: Mapping[str, str]
    ) -> None:
        """Store the task configurations that another worker's connector generated. Raises HerderError."""
        self._verify(body, headers)
        await self._prepare_change()
        await self._store_if_changed(name, configs)

    async def fence(self, name: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Check a request to fence the producers of a source connector, then reject it. Raises HerderError."""
        self._verify(body, headers)
        await self._prepare_change()
        if await self._is_sink(name):
            raise BadRequestError(f"Connector {name} is not a source connector")
        raise HerderError("exactly.once.source.support is disabled on this worker")

    def _verify(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Check the signature of an internal request, unless a worker of the group cannot sign. Raises SignatureError.

        Workers with the protocols "eager" and "compatible" do not sign requests.
        """
        if self._group_core.version is Version.SESSIONED:
            permitted = self.config["inter.worker.verification.algorithms"]
            verify(headers, body, key=self._snapshot.session_key, algorithms=permitted)

    async def _store_if_changed(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        async with self._lock(name):
            state = self._state(name)
            if configs and state.target is TargetState.STOPPED:
                raise BadRequestError(f"Cannot submit non-empty set of task configs for stopped connector {name}")
            if list(configs) != list(state.task_configs) or state.config != state.applied_config:
                await self._append(
                    PutTaskConfigs(name, configs), f"writing {len(configs)} task configs for connector {name}"
                )

    @property
    def _running_group(self) -> WorkerGroup:
        assert self._group is not None, "a request was executed before `wait_until_started` has returned"
        return self._group

    async def _submit_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        self._submission.submit(name, configs)

    # The group (worker_group.GroupListener)

    def run(self, assignment: Assignment) -> None:
        """Run exactly these connectors and tasks."""
        self._instances.carry_out(self._instances.core.assign(assignment))

    async def wait_until_stopped(self, assignment: Assignment) -> None:
        """Wait until these connectors and tasks have stopped."""
        await self._instances.wait_until_stopped(assignment)

    def on_rebalance_completed(self) -> None:
        """As the leader, remove statuses of deleted connectors and tasks, and distribute a session key.

        A worker that is still stopping deleted connectors and tasks writes their last statuses. A later rebalance
        removes these statuses.
        """
        self.ready = True
        self._has_joined.set()
        self._rebalanced.set()
        self._rebalanced = asyncio.Event()
        self._spawn(self._connector_offsets.close_unused())
        assignment, generation = self._group_core.assignment, self._group_core.generation
        if self._old_statuses.exist(assignment, generation):
            self._spawn(self._old_statuses.replace(assignment, generation, self._running_group.worker_ids))
        if self._group_core.leader_url != self._checked_leader:
            self._checked_leader = self._group_core.leader_url
            self._spawn(self._check_leader(self._group_core.leader_url))
        if not self._group_core.is_leader:
            return
        self._remove_old_statuses()
        self._session_keys.rotate_if_due()
        self._repair_task_configs(self._snapshot)

    def _repair_task_configs(self, snapshot: ConfigSnapshot) -> None:
        if self._task_configs_repair.is_due(snapshot):
            self._spawn(self._task_configs_repair.run())

    async def _check_leader(self, url: str | None) -> None:
        """Log an error for each internal topic that differs from the leader's."""
        if url is None or self._group_core.is_leader:
            return
        try:
            response = await rest_client.send(self.config, "GET", url, None, {}, kind=Kind.TASK_CONFIGS)
        except OSError as error:
            log.warning(
                "Leader %s: cannot compare this worker's internal topics with those of the leader: %s", url, error
            )
            self._checked_leader = None
            return
        for text in leader_check.differing_topics(self.config, response.headers):
            log.error("Group %s: %s", self.config["group.id"], text)

    def _check_writer(self, worker_id: str, connector: str) -> None:
        """Log an error if a worker that writes statuses of this worker's connectors is not a member of the group."""
        if worker_id not in self._checked_writers:
            self._checked_writers.add(worker_id)
            self._spawn(self._report_if_foreign(worker_id, connector))

    async def _report_if_foreign(self, worker_id: str, connector: str) -> None:
        if await self._running_group.is_foreign(worker_id):
            self._instances.report_foreign_worker(worker_id, connector)
        self._checked_writers.discard(worker_id)

    def _remove_old_statuses(self) -> None:
        wanted = configured(self._snapshot) | self._group_core.reported
        for name, task_count in self._statuses.task_counts().items():
            if name not in wanted.connectors:
                self._statuses.remove(name, None)
                continue
            if task_count:
                for number in self._statuses.get(name).tasks:
                    if (name, number) not in wanted.tasks:
                        self._statuses.remove(name, number)

    def _writes_session_keys(self) -> bool:
        return self._group_core.version is Version.SESSIONED and self._group_core.is_leader

    # The config topic

    def _on_config_change(self, change: ConfigChange, snapshot: ConfigSnapshot) -> None:
        effects = self._instances.core.on_snapshot(snapshot)
        match change:
            case RequestRestart(name, include_tasks, only_failed):
                plan = plan_restart(self._statuses.get(name), include_tasks=include_tasks, only_failed=only_failed)
                effects += self._instances.core.restart(name, plan, shows_restarting=True)
            case PutLogLevel(logger, level):
                self._spawn(self._set_own_log_level(logger, level))
            case PutConnector() | DeleteConnector():
                self._find_types(snapshot)
        self._instances.carry_out(effects)
        if self._group is not None:
            self._group.on_snapshot(snapshot)
        self._repair_task_configs(snapshot)

    async def _set_own_log_level(self, logger: str, level: str) -> None:
        try:
            await self.set_log_level(logger, level)
        except KeyError:
            log.error("Config topic: the log level %s of %s is unknown", level, logger)
        except NotFoundError:
            log.info("Config topic: the level of logger %s is not set, because this worker has no such logger", logger)

    def _find_types(self, snapshot: ConfigSnapshot) -> None:
        """Determine the types (source or sink) of connector classes that other workers have configured."""
        configs = {state.config.get("connector.class", ""): state.config for state in snapshot.connectors.values()}
        for class_name, config in configs.items():
            if class_name not in self._types:
                self._types[class_name] = "unknown"  # until the result arrives
                lookup = self._spawn(self._find_type(class_name, config))
                self._type_lookups.add(lookup)
                lookup.add_done_callback(self._type_lookups.discard)

    async def wait_for_types(self) -> None:
        """Wait until the types of all connectors are known, at most `TYPES_TIMEOUT_S`."""
        if self._type_lookups:
            await asyncio.wait(self._type_lookups, timeout=TYPES_TIMEOUT_S)

    async def _find_type(self, class_name: str, config: Mapping[str, str]) -> None:
        self._types[class_name] = await self._plugins.type_of(config)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A background operation of the worker failed: %s", error, exc_info=error)


def _internal_topics(config: WorkerConfig) -> list[InternalTopic]:
    purposes = {
        "config.storage": ("connector configurations", 1),
        "offset.storage": ("source connector offsets", None),
        "status.storage": ("connector and task statuses", None),
    }
    return [
        InternalTopic(
            prefix,
            purpose,
            config[f"{prefix}.topic"],
            partitions or config[f"{prefix}.partitions"],
            config[f"{prefix}.replication.factor"],
            internal_topics.topic_configs(config.properties, prefix),
        )
        for prefix, (purpose, partitions) in purposes.items()
    ]
