from __future__ import annotations

import asyncio

from headrace_broker.client.lazy_timer import LazyTimer
from support.virtual_time import run_in_virtual_time


def test_lazy_timer_expires_at_the_earliest_of_the_times_to_which_it_was_set() -> None:
    """The timer expires only once. After that, the timer can be set again."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        expired: list[float] = []
        timer = LazyTimer(loop, lambda: expired.append(loop.time() - start))
        start = loop.time()
        timer.set(start + 5)
        timer.set(start + 2)
        timer.set(start + 9)
        await asyncio.sleep(20)
        assert [round(each) for each in expired] == [2]
        timer.set(start + 30)
        await asyncio.sleep(20)
        assert [round(each) for each in expired] == [2, 30]

    run_in_virtual_time(run())


def test_cancelled_lazy_timer_does_not_expire() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        expired: list[float] = []
        timer = LazyTimer(loop, lambda: expired.append(loop.time()))
        timer.set(loop.time() + 1)
        timer.cancel()
        await asyncio.sleep(5)
        assert not expired

    run_in_virtual_time(run())
