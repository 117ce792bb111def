"""A standalone herder with a fake worker that records which connectors and tasks the herder started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headrace.herder.standalone import StandaloneHerder
from headrace.runtime.channel import RemoteError
from headrace.runtime.worker import Instance
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.file_offsets import FileOffsetStore


class SlowWorker:
    """A fake worker whose calls yield to the event loop first; `running` = the instances started and not stopped."""

    def __init__(self) -> None:
        self.running: set[Instance] = set()
        self.tasks = 2
        self.fails_to_start = False
        self.sent_orders: list[tuple[str, str]] = []

    async def validate(self, config: dict[str, str]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "source", "configs": []}

    async def start_connector(self, name: str, config: dict[str, str], generation: int) -> Instance:
        if self.fails_to_start:
            raise RemoteError("ValueError", "no", "the trace")
        return await self._started(Instance(name, None, generation, ""))

    async def task_configs(self, instance: Instance) -> list[dict[str, str]]:
        await asyncio.sleep(0)
        return [{} for _ in range(self.tasks)]

    async def start_task(self, spec: Any, generation: int) -> Instance:
        return await self._started(Instance(spec.connector, spec.number, generation, ""))

    def tell(self, instance: Instance, order: str) -> None:
        self.sent_orders.append((instance.name, order))

    def running_names(self) -> list[str]:
        """Return the sorted names of the running instances."""
        return sorted(instance.name for instance in self.running)

    async def stop_connector(self, instance: Instance) -> None:
        await self.stop_tasks([instance])

    async def stop_tasks(self, instances: list[Instance]) -> None:
        await asyncio.sleep(0)
        self.running -= set(instances)

    async def _started(self, instance: Instance) -> Instance:
        await asyncio.sleep(0)
        self.running.add(instance)
        return instance


CONFIG = {"connector.class": "C"}


def make_herder(tmp_path: Path) -> tuple[StandaloneHerder, SlowWorker]:
    worker = SlowWorker()
    herder = StandaloneHerder(
        WorkerConfig.standalone({"key.converter": "K", "value.converter": "V", "bootstrap.servers": "none:1",
                                 "offset.storage.file.filename": "unused"}),
        FileOffsetStore(tmp_path / "offsets"),
        "worker:1",
        lambda _: worker,  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    return herder, worker
