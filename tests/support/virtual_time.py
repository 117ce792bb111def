"""An event loop with a virtual clock, for tests that wait for timers: timeouts, sessions, backoffs, periodic checks."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer whenever nothing else is ready to run.

    Executor work runs immediately on the event loop's thread, so that the clock cannot jump during the work. Do not use
    this event loop with real sockets or subprocesses: the clock would jump while the event loop waits for I/O.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def block(self, seconds: float) -> None:
        """Advance the clock without running anything, like a callback that blocks the event loop."""
        self.now_s += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it from the future
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heapq.heappop(scheduled)._scheduled = False
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


in_virtual_time = pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("asyncio", {"loop_factory": VirtualTimeLoop}), id="virtual_time")]
)
"""A mark for an async test that runs on a `VirtualTimeLoop`."""


def run_in_virtual_time(work: Coroutine[Any, Any, None], *, timeout_s: float = 3600) -> None:
    """Run `work` on a `VirtualTimeLoop`.

    Fail after `timeout_s` seconds of virtual time, which pass without real waiting.
    """

    async def in_time() -> None:
        async with asyncio.timeout(timeout_s):
            await work

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(in_time())
