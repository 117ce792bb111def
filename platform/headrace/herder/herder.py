"""The herder as REST and the command line see it: a protocol and its typed results. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.runtime.task_metrics import TaskMetrics
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import TargetState
from headrace.stores.status_store import Status

OffsetPairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
"""Partitions and their new offsets; None resets an offset."""

RequestedOffsets = Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]
"""Partitions and offsets as a REST client sends them; a missing partition is None."""


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector. Its tasks have the numbers 0 to `task_count - 1`."""

    name: str
    config: Mapping[str, str]
    task_count: int
    type: str


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """The statuses of a connector and its tasks."""

    name: str
    connector: Status
    tasks: Mapping[int, Status]
    type: str


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of creating or reconfiguring a connector."""

    is_new: bool
    info: ConnectorInfo
    """The connector with the configuration as it was submitted."""
    warnings: Sequence[str] = ()
    """The warnings about the configuration."""


@dataclass(frozen=True, slots=True)
class StartCounts:
    """The number of the worker's attempts to start instances, and how many of them succeeded or failed."""

    attempts: int = 0
    successes: int = 0
    failures: int = 0

    def plus(self, *, is_success: bool) -> StartCounts:
        """Return the counts after one more attempt."""
        return StartCounts(self.attempts + 1, self.successes + is_success, self.failures + (not is_success))


@dataclass(frozen=True, slots=True)
class RebalanceMetrics:
    """The measurements of the rebalances of a worker in a group."""

    leader_name: str
    """The URL of the group's leader, or an empty string if it is unknown."""
    protocol: str
    """The version of the group protocol, as in `connect.protocol`."""
    epoch: int
    """The last generation of the group that the worker has joined, or -1."""
    completed: int
    is_rebalancing: bool
    avg_ms: float
    max_ms: float
    since_last_ms: float
    """The time since the last rebalance, or infinity."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """The measurements of a worker. In a group, they do not contain connectors and tasks of other workers."""

    statuses: Sequence[ConnectorStatus]
    """The connectors that the worker runs, or of which it runs tasks. The statuses contain only these tasks."""
    connectors: Set[str]
    """The names of the connectors that the worker runs. It runs only tasks of the others in `statuses`."""
    classes: Mapping[str, str]
    """The connector classes by connector name."""
    tasks: Sequence[TaskMetrics]
    connector_starts: StartCounts
    task_starts: StartCounts
    rebalances: RebalanceMetrics | None = None
    """None if the worker is not a member of a group."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The health of a worker, and of the brokers and the connectors that it uses."""

    is_ready: bool
    """Whether the worker has completed its startup."""
    uses_brokers: bool
    """Whether the worker itself uses brokers; in a standalone worker, only the tasks do."""
    broker_error: str | None
    """Why the brokers do not respond to this worker; None if they do."""
    failed_connectors: Sequence[str]
    """The failed connectors of this worker."""
    failed_tasks: Sequence[str]
    """The failed tasks of this worker, as CONNECTOR-NUMBER."""


class Herder(Protocol):
    """The connectors of a worker or a group of workers. Methods raise the errors of `headrace.herder.errors`."""

    @property
    def config(self) -> WorkerConfig:
        """The worker's configuration."""

    def health(self) -> WorkerHealth:
        """Return the health of the worker."""

    async def wait_until_started(self) -> None:
        """Wait until the worker knows the connectors of its group. Raises WorkerStoppingError.

        Call this before every other request about connectors: until then, the group would seem to have no connectors.
        """

    async def wait_for_types(self) -> None:
        """Wait for a limited time until the types of all connectors are known. Until then, a type is "unknown"."""

    def names(self) -> list[str]:
        """Return the names of all connectors."""

    def connector_config(self, name: str) -> Mapping[str, str]:
        """Return a connector's configuration as it was submitted. Raises NotFoundError."""

    def info(self, name: str) -> ConnectorInfo:
        """Describe a connector. Raises NotFoundError."""

    def status(self, name: str) -> ConnectorStatus:
        """Return the statuses of a connector and its tasks. Raises NotFoundError."""

    def task_status(self, name: str, task: int) -> Status:
        """Return the status of a task. Raises NotFoundError."""

    async def task_metrics(self, name: str, task: int) -> TaskMetrics | None:
        """Return the measurements of a task, or None if it does not run. Raises NotFoundError, ForwardError."""

    def task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the configurations of a connector's tasks. Raises NotFoundError."""

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used (KIP-558). Raises NotFoundError."""

    def reset_topics(self, name: str) -> None:
        """Clear the list of topics that a connector has used. Raises NotFoundError."""

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> PutResult:
        """Create or reconfigure a connector. Raises BadRequestError, AlreadyExistsError."""

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> PutResult:
        """Change configuration keys. The value None removes a key (KIP-477). Raises NotFoundError, BadRequestError.

        The result contains the configuration in the order of Java's `HashMap`, as in Kafka Connect.
        """

    async def delete(self, name: str) -> None:
        """Stop and delete a connector. Its offsets are kept. Raises NotFoundError."""

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Restart the selected instances (KIP-745). Raises NotFoundError.

        Return the statuses before the restart, but with the state RESTARTING for each selected instance. Raises
        HerderError if `include_tasks` and `only_failed` are false and the connector fails to start.
        """

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError, and HerderError if the task fails to start."""

    async def offsets(self, name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the committed offsets of a connector (KIP-875). Raises NotFoundError, HerderError."""

    async def alter_offsets(self, name: str, offsets: RequestedOffsets) -> bool | str:
        """Set offsets of a stopped connector. Return the result of its `alter_offsets`. Raises HerderError."""

    async def reset_offsets(self, name: str) -> bool | str:
        """Remove all offsets of a stopped connector. Return the result of its `alter_offsets`. Raises HerderError."""

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id, or None if the cluster cannot be reached."""

    async def plugins(self, *, connectors_only: bool) -> list[dict[str, str]]:
        """List the available plug-ins in the REST API's format. Raises HerderError."""

    async def plugin_config(self, plugin: str) -> list[dict[str, Any]]:
        """Return the key definitions of a plug-in in the REST API's format. Raises NotFoundError, HerderError."""

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> dict[str, Any]:
        """Validate a configuration for a plug-in. Return the result in the REST API's format. Raises HerderError."""

    async def set_log_level(self, logger: str, level: str) -> list[str]:
        """Set a log level in all processes of the worker. Return the loggers that have changed.

        Raises KeyError for an unknown level, NotFoundError for an unknown logger.
        """

    async def set_group_log_level(self, logger: str, level: str) -> None:
        """Set a log level in all workers of the group (KIP-976). Raises KeyError, NotFoundError."""

    async def put_task_configs(
        self, name: str, body: bytes, configs: Sequence[Mapping[str, str]], headers: Mapping[str, str]
    ) -> None:
        """Store the task configurations that another worker's connector generated. Raises HerderError.

        `body` is the request's body, whose signature is in `headers` (KIP-507).
        """

    async def fence(self, name: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Reject a request to fence a source connector's producers: exactly-once is not supported. Raises HerderError.

        `body` is the request's body, whose signature is in `headers` (KIP-507).
        """

    def metrics(self) -> WorkerMetrics:
        """Return the measurements of the worker."""
