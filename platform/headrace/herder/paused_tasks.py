"""Writes the task configurations of paused connectors again after a change of their connector's configuration.

The leader does so, because a worker that reads the compacted config topic would otherwise not know these tasks (see
`ConnectorState.needs_rewritten_tasks`). Kafka Connect loses them (KAFKA-17719). A former leader's write may come after
the connector was resumed: the connector then writes its own task configurations again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.stores.config_store import ConfigSnapshot, ConfigStore, PutTaskConfigs
from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

RETRY_S = 1.0


class PausedTasksWriter:
    """The task configurations that the leader writes again, one connector after the other."""

    def __init__(
        self,
        configs: ConfigStore,
        snapshot: Callable[[], ConfigSnapshot],
        is_leader: Callable[[], bool],
        lock: Callable[[str], asyncio.Lock],
    ) -> None:
        self._configs, self._snapshot, self._is_leader, self._lock = configs, snapshot, is_leader, lock
        self._is_running = False

    def is_due(self, snapshot: ConfigSnapshot) -> bool:
        """Whether `run` should be called: this worker is the leader, and a connector needs it."""
        return not self._is_running and self._is_leader() and bool(_connectors(snapshot))

    async def run(self) -> None:
        """Write task configurations until no connector needs it or another worker is the leader."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._is_leader() and (names := _connectors(self._snapshot())):
                try:
                    await self._write(names[0])
                except (ClientError, TimeoutError) as error:
                    log.error(
                        "Connector %s: the task configurations of the paused connector could not be written again, "
                        "retrying in %g s: %s",
                        names[0],
                        RETRY_S,
                        error or "timeout",
                    )
                    await asyncio.sleep(RETRY_S)
        finally:
            self._is_running = False

    async def _write(self, name: str) -> None:
        async with self._lock(name):
            state = self._snapshot().connectors.get(name)
            if state is not None and state.needs_rewritten_tasks:
                await self._configs.append(PutTaskConfigs(name, state.task_configs))


def _connectors(snapshot: ConfigSnapshot) -> list[str]:
    return [name for name, state in snapshot.connectors.items() if state.needs_rewritten_tasks]
