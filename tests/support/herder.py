"""A standalone herder with a fake worker that records which connectors and tasks the herder started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.herder.standalone import StandaloneHerder
from headrace.runtime.channel import RemoteError
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.task_metrics import TaskMetrics
from headrace.runtime.worker import Events
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.offset_store import MemoryOffsetStore


class SlowWorker:
    """A fake worker. Its async methods yield to the event loop first.

    `running` contains the ids of the started connectors and tasks.
    """

    def __init__(self) -> None:
        self.running: set[InstanceId] = set()
        self.tasks = 2
        self.type = "source"
        self.fails_to_start = False
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.connector_warnings: list[str] = []
        self.sent_orders: list[tuple[str, str]] = []

    async def validate(self, config: Mapping[str, str], plugin: str | None = None) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {
            "name": plugin,
            "error_count": len(self.errors),
            "groups": [],
            "configs": [{"definition": None, "value": {"name": "k", "errors": self.errors}}] if self.errors else [],
            "type": self.type,
            "warnings": self.warnings,
            "connector_warnings": self.connector_warnings,
        }

    async def connector_version(self, config: Mapping[str, str]) -> str:
        await asyncio.sleep(0)
        return "1.2.3"

    async def start_connector(self, id_: InstanceId, config: Mapping[str, str]) -> str:
        if self.fails_to_start:
            raise RemoteError("ValueError", "no", "the trace")
        return await self._started(id_)

    async def task_configs(self, id_: InstanceId) -> list[dict[str, str]]:
        await asyncio.sleep(0)
        return [{} for _ in range(self.tasks)]

    async def start_task(self, id_: InstanceId, spec: TaskSpec) -> str:
        return await self._started(id_)

    async def abort_start(self, id_: InstanceId) -> None:
        """Do nothing, because no start of this worker hangs."""

    def pause_task(self, id_: InstanceId) -> None:
        self.sent_orders.append((id_.name, "pause"))

    def resume_task(self, id_: InstanceId) -> None:
        self.sent_orders.append((id_.name, "resume"))

    def set_log_level(self, logger: str, level: str, now_ms: int) -> None:
        """Do nothing, because this worker has no processes."""

    def running_names(self) -> list[str]:
        """Return the sorted names of the running connectors and tasks."""
        return sorted(id_.name for id_ in self.running)

    async def stop(self, id_: InstanceId) -> None:
        await asyncio.sleep(0)
        self.running.discard(id_)

    def with_events(self, events: Events) -> SlowWorker:
        """Set the object that receives the events of connectors and tasks. Return this worker."""
        self.events = events
        return self

    async def alter_offsets(
        self, name: str, config: Mapping[str, str], offsets: Any, *, is_reset: bool = False
    ) -> bool:
        await asyncio.sleep(0)
        return True

    def task_metrics(self) -> list[TaskMetrics]:
        return []

    async def _started(self, id_: InstanceId) -> str:
        await asyncio.sleep(0)
        assert id_ not in self.running
        self.running.add(id_)
        return "1.2.3"


CONFIG = {"connector.class": "C"}


async def make_herder(tmp_path: Path) -> tuple[StandaloneHerder, SlowWorker]:
    worker = SlowWorker()
    herder = StandaloneHerder(
        WorkerConfig.standalone({"key.converter": "K", "value.converter": "V", "bootstrap.servers": "none:1",
                                 "offset.storage.file.filename": "unused"}),
        MemoryOffsetStore(),
        "worker:1",
        worker.with_events,  # type: ignore[arg-type]
    )  # fmt: skip
    await herder.start()
    return herder, worker
