"""Tests of the class Instances, which handles the requests that tasks send to their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from headrace.herder.assignment import EMPTY, Assignment
from headrace.herder.instance_effects import PutStatus, StartConnector
from headrace.herder.instances import Instances
from headrace.runtime.channel import RemoteError
from headrace.runtime.spec import InstanceId
from headrace.runtime.worker import StartTerminated
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import ConfigSnapshot, PutConnector
from headrace.stores.offset_store import MemoryOffsetStore
from headrace.stores.status_records import StatusKey
from headrace.stores.status_store import State, Status
from support.herder import CONFIG, SlowWorker

pytestmark = pytest.mark.anyio

TASK = InstanceId("c", 0, 1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_instances(offsets: MemoryOffsetStore, statuses: Any = None, **options: Any) -> Instances:
    config = WorkerConfig.standalone(
        {
            "key.converter": "K",
            "value.converter": "V",
            "bootstrap.servers": "none:1",
            "offset.storage.file.filename": "unused",
        }
    )
    statuses = statuses or Mock()
    return Instances(config, "me", Mock(), statuses=statuses, offsets=offsets, store_task_configs=Mock(), **options)


async def test_terminated_start_of_a_connector_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The class `Worker` has already logged the termination of the start."""
    instances = make_instances(MemoryOffsetStore())
    instances.worker.start_connector = AsyncMock(side_effect=StartTerminated("terminated"))  # type: ignore[method-assign]
    instances.carry_out([StartConnector(InstanceId("c", None, 1), CONFIG)])
    await instances.settled("c")
    assert caplog.records == []


async def test_status_written_by_a_worker_of_another_group_is_replaced_once_per_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generation, statuses = 5, Mock()
    instances = make_instances(MemoryOffsetStore(), statuses=statuses, status_generation=lambda: generation)
    instances.core.status_replaced = Mock(  # type: ignore[method-assign]
        return_value=[PutStatus("c", 0, State.RUNNING)]
    )

    def read(worker_id: str, generation: int) -> int:
        """Read a status that the worker `worker_id` wrote in `generation`.

        Return the number of statuses that the worker under test writes in response.
        """
        statuses.put.reset_mock()
        instances.status_read(StatusKey("c", 0), Status(State.RUNNING, worker_id, generation))
        return int(statuses.put.call_count)

    assert [read("other", 5) for _ in range(3)] == [1, 0, 0]
    assert [read("third", 5) for _ in range(2)] == [1, 0]
    assert [read("other", 4) for _ in range(2)] == [1, 1], "a delayed status of a former owner"
    assert read("other", 6) == 0
    generation = 6
    assert [read("other", 6) for _ in range(2)] == [1, 0]
    errors = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[1].split()[1] for text in errors] == ["other", "third"]


async def test_group_membership_of_another_worker_is_checked_if_it_writes_an_unexpected_status() -> None:
    """A status is unexpected if three conditions are true.

    This worker runs the connector or task. The generation of the status differs from the generation of this worker. The
    state is not UNASSIGNED.
    """
    checked: list[tuple[str, str]] = []
    instances = make_instances(
        MemoryOffsetStore(), status_generation=lambda: 5, check_writer=lambda *found: checked.append(found)
    )
    runs = [PutStatus("c", 0, State.RUNNING)]
    instances.core.status_replaced = lambda *_: runs  # type: ignore[assignment,method-assign]
    for state, worker_id, generation in (
        (State.RUNNING, "earlier", 4), (State.FAILED, "later", 6), (State.UNASSIGNED, "stopped", 4),
        (State.RUNNING, "me", 4), (State.RUNNING, "equal", 5),
    ):  # fmt: skip
        instances.status_read(StatusKey("c", 0), Status(state, worker_id, generation))
    instances.status_read(StatusKey("c", 0), None)
    assert checked == [("earlier", "c"), ("later", "c")]
    runs.clear()  # this worker does not run the task
    instances.status_read(StatusKey("c", 0), Status(State.RUNNING, "third", 6))
    assert len(checked) == 2


async def test_offsets_of_a_task_that_another_worker_may_run_are_not_stored() -> None:
    offsets, may_commit = MemoryOffsetStore(), True
    instances = make_instances(offsets, may_commit=lambda _: may_commit)
    await instances.commit_offsets(TASK, [({"p": 1}, {"o": 1})])
    may_commit = False
    with pytest.raises(LookupError, match="Task c-0: its offsets are not committed"):
        await instances.commit_offsets(TASK, [({"p": 1}, {"o": 2})])
    assert await offsets.read("c", [{"p": 1}]) == [{"o": 1}]


async def test_wait_for_an_unassigned_connector_ends_when_the_start_of_the_connector_fails() -> None:
    """The connector is still starting when it is unassigned.

    With the eager protocol, the worker cannot rejoin its group before `wait_until_stopped` has returned.
    """

    class BlockedWorker(SlowWorker):
        must_fail = asyncio.Event()

        async def start_connector(self, id_: InstanceId, config: Mapping[str, str]) -> str:
            await self.must_fail.wait()
            raise RemoteError("ValueError", "no", "the trace")

    instances, worker, assigned = make_instances(MemoryOffsetStore()), BlockedWorker(), Assignment(frozenset({"c"}))
    instances.worker = worker  # type: ignore[assignment]
    instances.core.assign(assigned)
    instances.carry_out(instances.core.on_snapshot(ConfigSnapshot().apply(0, PutConnector("c", CONFIG))))
    instances.carry_out(instances.core.assign(EMPTY))
    stopped = asyncio.ensure_future(instances.wait_until_stopped(assigned))
    await asyncio.sleep(0)
    assert not stopped.done()
    worker.must_fail.set()
    async with asyncio.timeout(30):
        await stopped
    assert instances.core.instances("c") == []
