"""The effects that `HerderCore` returns and the herder carries out. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.runtime.spec import InstanceId
from headrace.stores.status_store import State


@dataclass(frozen=True, slots=True)
class StartConnector:
    """Start a connector instance, then call `started` or `start_failed`."""

    instance: InstanceId
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task, then call `started` or `start_failed`."""

    instance: InstanceId
    task_count: int
    task_config: Mapping[str, str]
    connector_config: Mapping[str, str]
    is_paused: bool


@dataclass(frozen=True, slots=True)
class StopInstance:
    """Stop a connector or task, and then call `stopped`. After the graceful timeout, the stop is forced."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class AbortStart:
    """End a start that does not complete within the graceful timeout. Then call `started` or `start_failed`."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class PauseTask:
    """Pause a task. The task then reports its state."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class ResumeTask:
    """Resume a task. The task then reports its state."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class RequestTaskConfigs:
    """Request task configurations from a connector, then call `task_configs_generated` or `task_configs_failed`."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class RetryTaskConfigs:
    """Call `retry_due` after a delay."""

    instance: InstanceId
    delay_ms: int


@dataclass(frozen=True, slots=True)
class RestartLater:
    """Log `text`, and call `restart_due` after a delay. This is used if errors.restart.max.attempts is set.

    `delay_ms` is None if all automatic restarts of the instance have failed.
    """

    instance: InstanceId
    delay_ms: int | None
    text: str


@dataclass(frozen=True, slots=True)
class WatchRestarted:
    """Call `ran_long_enough` after a delay. This is used for an instance that has started after automatic restarts."""

    instance: InstanceId
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ForgetKill:
    """Call `kill_forgotten` after a delay: the restart of this killed instance no longer counts against the limit."""

    instance: InstanceId
    delay_ms: int


@dataclass(frozen=True, slots=True)
class StoreTaskConfigs:
    """Append the task configurations to the config store."""

    connector: str
    configs: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PutStatus:
    """Store a status."""

    connector: str
    task: int | None
    state: State
    generation: int = 0
    trace: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ShowStarting:
    """Report the state UNASSIGNED for a starting instance until the instance has a status. Nothing is stored."""

    instance: InstanceId
    version: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveStatus:
    """Remove the status of a task, or of a connector and all its tasks (task None)."""

    connector: str
    task: int | None


Effect: TypeAlias = (
    StartConnector
    | StartTask
    | StopInstance
    | AbortStart
    | PauseTask
    | ResumeTask
    | RequestTaskConfigs
    | RetryTaskConfigs
    | RestartLater
    | WatchRestarted
    | ForgetKill
    | StoreTaskConfigs
    | PutStatus
    | ShowStarting
    | RemoveStatus
)
