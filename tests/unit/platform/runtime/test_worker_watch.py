"""Tests that a source task stops polling while its worker is suspended or is not a member of its group.

The task regularly asks the worker to confirm that the task may run.
"""

from __future__ import annotations

import asyncio

from headrace.runtime import worker_watch
from headrace.runtime.channel import ChannelClosed, RemoteError
from headrace.runtime.source_task_core import Poll, SourceTaskCore
from headrace.runtime.task_effects import ReportState, Wait
from support.virtual_time import run_in_virtual_time


class Worker:
    """A worker that can be suspended. If `error` is set, it responds with this error instead of a confirmation."""

    def __init__(self) -> None:
        self.runs = asyncio.Event()
        self.runs.set()
        self.error: Exception | None = None

    async def confirm(self) -> None:
        await self.runs.wait()
        if self.error is not None:
            raise self.error


def test_watch_reports_a_task_as_unconfirmed_while_its_worker_is_suspended() -> None:
    async def scenario() -> None:
        worker, reports, loop = Worker(), list[tuple[bool, float]](), asyncio.get_running_loop()
        watch = asyncio.create_task(worker_watch.watch(worker.confirm, 9.0, lambda is_confirmed: reports.append(
            (is_confirmed, loop.time())
        )))  # fmt: skip
        await asyncio.sleep(30.5)
        assert reports == []
        worker.runs.clear()
        await asyncio.sleep(30)
        [(is_confirmed, at_s)] = reports
        assert not is_confirmed
        assert 30 < at_s <= 39
        worker.runs.set()
        await asyncio.sleep(1)
        assert [is_confirmed for is_confirmed, _ in reports] == [False, True]
        watch.cancel()

    run_in_virtual_time(scenario())


def test_watch_reports_a_missing_confirmation_while_the_worker_is_not_a_member_of_the_group() -> None:
    """A worker that is not a member of its group does not confirm that the task may run."""

    async def scenario() -> None:
        worker, reports = Worker(), list[bool]()
        watch = asyncio.create_task(worker_watch.watch(worker.confirm, 9.0, reports.append))
        worker.error = RemoteError("LookupError", "no member", "")
        await asyncio.sleep(10)
        assert reports == [False]
        worker.error = None
        await asyncio.sleep(10)
        assert reports == [False, True]
        worker.error = ChannelClosed()
        await asyncio.wait_for(watch, 30)
        assert reports == [False, True]

    run_in_virtual_time(scenario())


def test_source_task_does_not_poll_while_its_worker_does_not_confirm_that_the_task_may_run() -> None:
    core = SourceTaskCore("c-0", is_paused=False, tolerates_errors=False, commits_records=False)
    assert core.next_step(0, is_buffer_full=False) == [ReportState(False)]
    assert core.next_step(0, is_buffer_full=False) == [Poll()]
    core.on_confirmed(False)
    assert core.next_step(0, is_buffer_full=False) == [Wait(None)]
    core.on_confirmed(True)
    assert core.next_step(0, is_buffer_full=False) == [Poll()]
