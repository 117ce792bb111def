"""The standalone herder: a single worker. Configurations and statuses are in memory, and offsets are in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.herder.base import BaseHerder
from headrace.herder.errors import HerderError
from headrace.herder.instances import Instances
from headrace.herder.restart_plan import plan_restart
from headrace.runtime.worker import Events, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    MemoryConfigStore,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.offset_store import OffsetStore
from headrace.stores.status_store import MemoryStatusStore


class StandaloneHerder(BaseHerder):
    """All connectors of a standalone worker. Call `start` first and `stop` last."""

    def __init__(
        self,
        config: WorkerConfig,
        offsets: OffsetStore,
        worker_id: str,
        make_worker: Callable[[Events], Worker],
    ) -> None:
        statuses = MemoryStatusStore()
        instances = Instances(
            config,
            worker_id,
            make_worker,
            statuses=statuses,
            offsets=offsets,
            store_task_configs=self._store_task_configs,
        )
        super().__init__(config, instances, configs=MemoryConfigStore(), statuses=statuses, offsets=offsets)

    async def start(self) -> None:
        """Start the stores."""
        await self._statuses.start()
        snapshot = await self._configs.start(self._on_config_change)
        self._instances.carry_out(self._instances.core.on_snapshot(snapshot))

    async def stop(self) -> None:
        """Stop all tasks (which commit their offsets) and connectors, then end all processes."""
        await self._instances.stop()
        await self._configs.stop()
        await self._statuses.stop()
        await self._instances.worker.close()

    async def set_group_log_level(self, logger: str, level: str) -> None:
        """Set a log level in this worker, which is the only worker. Raises KeyError, NotFoundError."""
        await self.set_log_level(logger, level)

    async def put_task_configs(
        self, name: str, body: bytes, configs: Sequence[Mapping[str, str]], headers: Mapping[str, str]
    ) -> None:
        """Reject a request between workers of a group. A standalone worker has no group. Raises HerderError."""
        raise HerderError("Kafka Connect in standalone mode does not support this internal request.")

    async def fence(self, name: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Reject a request between workers of a group. A standalone worker has no group. Raises HerderError."""
        raise HerderError("Kafka Connect in standalone mode does not support this internal request.")

    def _on_config_change(self, change: ConfigChange, snapshot: ConfigSnapshot) -> None:
        effects = self._instances.core.on_snapshot(snapshot)
        if isinstance(change, RequestRestart):
            plan = plan_restart(
                self._statuses.get(change.connector),
                include_tasks=change.include_tasks,
                only_failed=change.only_failed,
            )
            effects += self._instances.core.restart(change.connector, plan, shows_restarting=True)
        self._instances.carry_out(effects)

    async def _store_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        state = self._snapshot.connectors.get(name)
        if state is not None and state.target is not TargetState.STOPPED:  # it may have been stopped meanwhile
            await self._configs.append(PutTaskConfigs(name, configs))
