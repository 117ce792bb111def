"""The specifications of tasks and connectors that the worker sends to a host: plain data. This module does no I/O."""

from __future__ import annotations

import msgspec

from headrace.runtime.worker_config import worker_value


class TaskSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The specification of one task. Variables of config providers are resolved in the process that runs the task."""

    connector: str
    number: int
    task_count: int = 1
    config: dict[str, str]
    connector_config: dict[str, str]
    worker: dict[str, str]
    paused: bool = False
    dead_member: str = ""
    """The id of the consumer group member that a killed or crashed process of this sink task has left in the group."""

    @property
    def name(self) -> str:
        """`<connector>-<n>`, the name of the task in client ids and thread names."""
        return f"{self.connector}-{self.number}"

    def worker_ms(self, key: str) -> int:
        """Return the value of a worker key with a duration in ms, or the key's default."""
        duration_ms: int = worker_value(self.worker, key)
        return duration_ms


class ConnectorSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The specification of one connector instance."""

    name: str
    config: dict[str, str]
    worker: dict[str, str]


class InstanceId(msgspec.Struct, frozen=True, array_like=True):
    """The id of one connector instance (task None) or task. Each start has a new generation."""

    connector: str
    task: int | None
    generation: int

    @property
    def name(self) -> str:
        """`<connector>` or `<connector>-<n>`."""
        return self.connector if self.task is None else f"{self.connector}-{self.task}"
