"""What the worker tells a host to run: plain data that goes over a channel. Pure."""

from __future__ import annotations

import msgspec


class TaskSpec(msgspec.Struct, kw_only=True, frozen=True):
    """One task. Configurations are unresolved: variables of config providers are resolved where the task runs."""

    connector: str
    number: int
    config: dict[str, str]
    connector_config: dict[str, str]
    worker: dict[str, str]
    paused: bool = False

    @property
    def name(self) -> str:
        """`<connector>-<n>`, as clients and threads are named."""
        return f"{self.connector}-{self.number}"

    def worker_ms(self, key: str, default: int) -> int:
        """A duration out of the worker's properties."""
        return int(self.worker.get(key, default))


class ConnectorSpec(msgspec.Struct, kw_only=True, frozen=True):
    """One connector instance."""

    name: str
    config: dict[str, str]
    worker: dict[str, str]
