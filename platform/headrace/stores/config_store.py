"""The config store: an ordered log of connector configurations, task configurations and target states.

Every change has an offset in the log. `ConfigSnapshot` is the state after all changes up to an offset. Each worker
applies the changes in log order, so workers with equal offsets have equal snapshots. In a distributed worker, the log
is the config topic. In a standalone worker, the log is in memory (`MemoryConfigStore`). This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias


class TargetState(StrEnum):
    """The state of a connector that the user has requested."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    @classmethod
    def from_initial_state(cls, text: str) -> TargetState:
        """Parse KIP-980's `initial_state` (RUNNING, PAUSED or STOPPED, case-insensitive). Raises ValueError."""
        names = {"RUNNING": cls.STARTED, "PAUSED": cls.PAUSED, "STOPPED": cls.STOPPED}
        try:
            return names[text.upper()]
        except KeyError:
            raise ValueError(f"initial_state: {text!r} must be one of RUNNING, PAUSED, STOPPED") from None


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Create or reconfigure a connector. Without `target`, an existing connector keeps its target state."""

    connector: str
    config: Mapping[str, str]
    target: TargetState | None = None


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    """Delete a connector with its task configurations and target state."""

    connector: str


@dataclass(frozen=True, slots=True)
class PutTaskConfigs:
    """Replace the task configurations of a connector. All its tasks restart."""

    connector: str
    configs: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PutTargetState:
    """Pause, resume or stop a connector."""

    connector: str
    target: TargetState


@dataclass(frozen=True, slots=True)
class RequestRestart:
    """Restart the instances that the request selects (KIP-745). Each worker restarts the instances that it runs."""

    connector: str
    include_tasks: bool
    only_failed: bool


@dataclass(frozen=True, slots=True)
class PutSessionKey:
    """Set the key with which workers sign internal REST requests (KIP-507). `key` is in Base64."""

    key: str = field(repr=False)
    algorithm: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class PutLogLevel:
    """Set a log level in all workers of the group (KIP-976)."""

    logger: str
    level: str


ConnectorChange: TypeAlias = PutConnector | DeleteConnector | PutTaskConfigs | PutTargetState | RequestRestart
ConfigChange: TypeAlias = ConnectorChange | PutSessionKey | PutLogLevel


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """The desired state of one connector, with the offsets of its last `PutConnector` and `PutTaskConfigs`."""

    config: Mapping[str, str]
    target: TargetState
    config_offset: int
    task_configs: Sequence[Mapping[str, str]] = ()
    task_configs_offset: int = -1
    applied_config: Mapping[str, str] | None = None
    """The connector's configuration when the task configurations were written; the tasks run with it."""

    has_ignored_tasks: bool = False
    """Whether task configurations that precede the connector's configuration in the topic are ignored."""

    def tasks_to_rewrite(self) -> Sequence[Mapping[str, str]] | None:
        """Return the task configurations that the leader must write again so that all workers read the same, or None.

        If the connector's configuration is written again, compaction removes the earlier configuration, which preceded
        the task configurations. A worker that reads the topic later then ignores the task configurations, as Kafka
        Connect does (KAFKA-16838), because they may be those of a deleted connector. After a change, a running
        connector generates its task configurations again, but not if the same configuration was written again. A paused
        connector generates them only when it is resumed (KAFKA-17719). If the leader has ignored the task
        configurations, no worker may keep them. A stopped connector has tasks only if a former leader wrote them too
        late.
        """
        if self.target is TargetState.STOPPED:
            return () if self.task_configs else None
        if not self.task_configs:
            return () if self.has_ignored_tasks else None
        if self.task_configs_offset >= self.config_offset:
            return None
        generates_none = self.target is TargetState.PAUSED or self.config == self.applied_config
        return self.task_configs if generates_none else None


@dataclass(frozen=True, slots=True)
class ConfigSnapshot:
    """The connectors after the changes up to `offset`, in order of their creation."""

    offset: int = -1
    connectors: Mapping[str, ConnectorState] = field(default_factory=dict)
    session_key: PutSessionKey | None = None

    def apply(self, offset: int, change: ConfigChange) -> ConfigSnapshot:
        """Return the snapshot after one more change. Changes of connectors that do not exist have no effect."""
        if isinstance(change, PutSessionKey):
            return replace(self, offset=offset, session_key=change)
        if isinstance(change, PutLogLevel):
            return replace(self, offset=offset)
        connectors = dict(self.connectors)
        known = connectors.get(change.connector)
        match change:
            case PutConnector(name, config, target):
                if known is None:
                    connectors[name] = ConnectorState(config, target or TargetState.STARTED, offset)
                else:
                    target = target or known.target
                    connectors[name] = replace(known, config=config, target=target, config_offset=offset)
            case DeleteConnector(name):
                connectors.pop(name, None)
            case PutTaskConfigs(name, configs) if known is not None:
                connectors[name] = replace(
                    known,
                    task_configs=tuple(configs),
                    task_configs_offset=offset,
                    applied_config=known.config,
                    has_ignored_tasks=False,
                )
            case PutTargetState(name, target) if known is not None:
                connectors[name] = replace(known, target=target)
        return replace(self, offset=offset, connectors=connectors)


Listener: TypeAlias = Callable[[ConfigChange, ConfigSnapshot], None]
"""Receives each change, in log order, with the snapshot after it."""


class ConfigStore(Protocol):
    """The log of configuration changes."""

    async def start(self, listener: Listener) -> ConfigSnapshot:
        """Read the log to its end offset and return the snapshot. `listener` receives later changes."""

    async def stop(self) -> None:
        """Stop reading the log. The listener receives no further changes."""

    async def append(self, change: ConfigChange) -> int:
        """Append a change. When the listener has received the change, return its offset."""

    async def refresh(self, timeout_s: float) -> ConfigSnapshot:
        """Read to the current end offset of the log and return the snapshot. Raises TimeoutError."""


class MemoryConfigStore:
    """The log of a standalone worker. It exists only as long as the worker, so only the snapshot is kept."""

    def __init__(self) -> None:
        self._snapshot = ConfigSnapshot()
        self._listener: Listener | None = None

    async def start(self, listener: Listener) -> ConfigSnapshot:
        """Return the snapshot. The listener receives later changes."""
        self._listener = listener
        return self._snapshot

    async def stop(self) -> None:
        """Remove the listener."""
        self._listener = None

    async def append(self, change: ConfigChange) -> int:
        """Append a change. When the listener has received the change, return its offset."""
        self._snapshot = self._snapshot.apply(self._snapshot.offset + 1, change)
        offset = self._snapshot.offset
        if self._listener is not None:
            self._listener(change, self._snapshot)
        return offset

    async def refresh(self, timeout_s: float) -> ConfigSnapshot:
        """Return the snapshot, which is always current."""
        return self._snapshot
