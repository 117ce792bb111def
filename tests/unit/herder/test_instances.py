"""Tests of Instances: the requests of tasks to their worker."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from headrace.herder.instances import Instances
from headrace.runtime.spec import InstanceId
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.offset_store import MemoryOffsetStore

pytestmark = pytest.mark.anyio

TASK = InstanceId("c", 0, 1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_instances(offsets: MemoryOffsetStore, **options: Any) -> Instances:
    config = WorkerConfig.standalone(
        {
            "key.converter": "K",
            "value.converter": "V",
            "bootstrap.servers": "none:1",
            "offset.storage.file.filename": "unused",
        }
    )
    return Instances(config, "me", Mock(), statuses=Mock(), offsets=offsets, store_task_configs=Mock(), **options)


async def test_offsets_of_a_task_that_another_worker_may_run_are_not_stored() -> None:
    offsets, may_commit = MemoryOffsetStore(), True
    instances = make_instances(offsets, may_commit=lambda _: may_commit)
    await instances.commit_offsets(TASK, [({"p": 1}, {"o": 1})])
    may_commit = False
    with pytest.raises(LookupError, match="Task c-0: its offsets are not committed"):
        await instances.commit_offsets(TASK, [({"p": 1}, {"o": 2})])
    assert await offsets.read("c", [{"p": 1}]) == [{"o": 1}]
