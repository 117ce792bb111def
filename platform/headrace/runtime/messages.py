"""The messages between the worker and the processes of its connectors and tasks: plain data. This module does no I/O.

A `Request[R]` receives a response of type R, or an error. A `Notification` receives no response. The generation in an
instance id distinguishes messages of a replaced instance from those of its successor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from headrace.runtime.record_lags import PartitionLag
from headrace.runtime.spec import ConnectorSpec, InstanceId, TaskSpec

R = TypeVar("R")

MetricType: TypeAlias = Literal["gauge", "counter"]
InstanceState: TypeAlias = Literal["RUNNING", "PAUSED", "STOPPED", "FAILED"]
OffsetPair: TypeAlias = tuple[Mapping[Any, Any], Mapping[Any, Any] | None]
"""A source partition and its offset; None removes the offset."""


class Notification(msgspec.Struct, frozen=True, tag=True):
    """A message without a response."""


class Request(msgspec.Struct, Generic[R], frozen=True, tag=True):
    """A message with a response of type R."""


@cache
def response_type(request: type[Request[Any]]) -> Any:
    """Return the type of a request's response."""
    base: Any = request.__orig_bases__[0]  # type: ignore[attr-defined]
    return get_args(base)[0]


# From the worker to a host: instances


class StartConnector(Request[str], frozen=True):
    """Create and start a connector instance. The response is the connector's version."""

    instance: InstanceId
    spec: ConnectorSpec


class StartTask(Request[str], frozen=True):
    """Create a task and start its thread, which reports the task's state. The response is the task's version."""

    instance: InstanceId
    spec: TaskSpec


class TaskConfigsRequest(Request[list[dict[str, str]]], frozen=True):
    """Generate the task configurations of a connector."""

    instance: InstanceId


class StopInstance(Request[None], frozen=True):
    """Stop a connector or task. The response means that it has stopped."""

    instance: InstanceId


class PauseTask(Notification, frozen=True):
    """Pause a task."""

    instance: InstanceId


class ResumeTask(Notification, frozen=True):
    """Resume a task."""

    instance: InstanceId


# From the worker to a host: plug-ins without an instance, and the process


class Validate(Request[dict[str, Any]], frozen=True):
    """Validate a connector configuration. The response has the REST API's format, with `type` and `warnings` added."""

    config: dict[str, str | None]
    worker: dict[str, str]
    plugin: str | None


class SharedModulesRequest(Request[list[str]], frozen=True):
    """Return the modules that all processes of a connector import."""

    config: dict[str, str]
    worker: dict[str, str]


class ResolveConfig(Request[dict[str, str]], frozen=True):
    """Return a configuration with the variables of config providers replaced."""

    config: dict[str, str]
    worker: dict[str, str]


class ConnectorTypeRequest(Request[str], frozen=True):
    """Return whether the class of a connector is a "source" or a "sink"."""

    config: dict[str, str]
    worker: dict[str, str]


class ConnectorVersionRequest(Request[str], frozen=True):
    """Return the version of a connector's class."""

    config: dict[str, str]
    worker: dict[str, str]


class AlterOffsets(Request[bool | str], frozen=True):
    """Let a connector check altered offsets. The response is the result of its `alter_offsets`.

    `is_reset` means that all offsets are to be removed.
    """

    spec: ConnectorSpec
    offsets: Sequence[OffsetPair]
    is_reset: bool = False


class ListPlugins(Request[list[dict[str, str]]], frozen=True):
    """List the plug-ins in the REST API's format."""

    worker: dict[str, str]
    connectors_only: bool


class DescribePlugin(Request[list[dict[str, Any]]], frozen=True):
    """Return the key definitions of one plug-in in the REST API's format."""

    worker: dict[str, str]
    plugin: str


class RunModule(Request[None], frozen=True):
    """Run ``python -m <module>`` in a child process, and respond when it has ended. It is an error if it fails."""

    worker: dict[str, str]
    module: str


class SetLogLevel(Notification, frozen=True):
    """Set a log level in the process."""

    logger: str
    level: str
    now_ms: int


class Ping(Request[None], frozen=True):
    """Check that the event loop of the process is running. If it is, the process responds."""


class Exit(Notification, frozen=True):
    """End the process."""


# From a host to the worker


class StateChanged(Notification, frozen=True):
    """An instance has a new state. After a failure, `trace` is the stack trace."""

    instance: InstanceId
    state: InstanceState
    trace: str | None


class TopicUsed(Notification, frozen=True):
    """A task uses a topic (KIP-558)."""

    instance: InstanceId
    topic: str


class MemberJoined(Notification, frozen=True):
    """The consumer of a sink task is a member of its group, with this member id."""

    instance: InstanceId
    member_id: str


class RegisteredMetric(msgspec.Struct, frozen=True, array_like=True):
    """A metric with its current value. `doc` says what the metric means."""

    name: str
    type: MetricType
    doc: str
    value: float


class CountersReported(Notification, frozen=True):
    """The counters of a task since its start, and its current values, such as rates of the last seconds.

    `registered` contains the metrics that the task has registered itself.
    """

    instance: InstanceId
    counters: dict[str, float]
    gauges: dict[str, float]
    registered: list[RegisteredMetric] = []


class LagsReported(Notification, frozen=True):
    """The lags of a sink task's partitions. `client_id` is that of its consumer."""

    instance: InstanceId
    client_id: str
    lags: list[PartitionLag]


class ReconfigurationRequested(Request[None], frozen=True):
    """A connector requests that the worker calls its `task_configs` again."""

    instance: InstanceId


class ValuesExpire(Notification, frozen=True):
    """An instance uses a value of a config provider that expires in `ttl_ms` (KIP-297)."""

    instance: InstanceId
    ttl_ms: int


class ModuleRequested(Notification, frozen=True):
    """A task requests that the worker runs ``python -m <module>`` in a process that does not end with the task."""

    instance: InstanceId
    module: str


class ConfirmTask(Request[None], frozen=True):
    """Ask the worker whether it may run the task. The worker confirms this if it is a member of its group."""

    instance: InstanceId


class ReadOffsets(Request[list[dict[str, Any] | None]], frozen=True):
    """Return the committed offsets of these source partitions."""

    instance: InstanceId
    partitions: list[dict[Any, Any]]


class CommitOffsets(Request[None], frozen=True):
    """Write source offsets. The response means that they are stored."""

    instance: InstanceId
    offsets: Sequence[OffsetPair]


WorkerMessage: TypeAlias = (
    StartConnector
    | StartTask
    | TaskConfigsRequest
    | StopInstance
    | PauseTask
    | ResumeTask
    | Validate
    | SharedModulesRequest
    | ResolveConfig
    | ConnectorTypeRequest
    | ConnectorVersionRequest
    | AlterOffsets
    | ListPlugins
    | DescribePlugin
    | RunModule
    | SetLogLevel
    | Ping
    | Exit
)
"""The messages from the worker to a host."""

HostMessage: TypeAlias = (
    StateChanged
    | TopicUsed
    | MemberJoined
    | CountersReported
    | LagsReported
    | ReconfigurationRequested
    | ValuesExpire
    | ModuleRequested
    | ConfirmTask
    | ReadOffsets
    | CommitOffsets
)
"""The messages from a host to the worker."""
