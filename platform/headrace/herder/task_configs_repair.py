"""Writes task configurations again if workers could read different ones from the config topic.

The leader does this, for example, after the configuration of a paused connector was changed. Otherwise, a worker that
reads the compacted config topic would not know the connector's tasks (see `ConnectorState.tasks_to_rewrite`). Kafka
Connect loses such tasks (KAFKA-17719). If a former leader writes old task configurations after newer ones, the worker
with the connector stores the newer ones again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.stores.config_store import ConfigSnapshot, ConfigStore, PutTaskConfigs
from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

RETRY_S = 1.0


class TaskConfigsRepair:
    """Writes task configurations again as the leader, for one connector after the other."""

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
        """Whether `run` should be called, because this worker is the leader and a connector needs this."""
        return not self._is_running and self._is_leader() and bool(_connectors(snapshot))

    async def run(self) -> None:
        """Write task configurations again until no connector needs this any more, or another worker is the leader."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._is_leader() and (names := _connectors(self._snapshot())):
                try:
                    await self._write(names[0])
                except (ClientError, TimeoutError) as error:
                    log.error(
                        "Connector %s: the task configurations could not be written again, retrying in %g s: %s",
                        names[0],
                        RETRY_S,
                        error,
                    )
                    await asyncio.sleep(RETRY_S)
        finally:
            self._is_running = False

    async def _write(self, name: str) -> None:
        async with self._lock(name):
            state = self._snapshot().connectors.get(name)
            if state is not None and (tasks := state.tasks_to_rewrite()) is not None:
                await self._configs.append(PutTaskConfigs(name, tasks))


def _connectors(snapshot: ConfigSnapshot) -> list[str]:
    return [name for name, state in snapshot.connectors.items() if state.tasks_to_rewrite() is not None]
