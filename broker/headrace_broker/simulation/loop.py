"""A deterministic asyncio event loop that many simulated nodes share, with a seed as its only source of randomness.

Each callback belongs to the node in whose context it was scheduled. The callbacks of one node run in
asyncio's order. The seed determines which node runs next. The callbacks of a crashed node never run.
The callbacks of a paused node run when the node is resumed, as with SIGSTOP and SIGCONT. Each node
has a separate clock, which may run fast or slow. The event loop never sleeps: when no callback is
ready, simulated time advances to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from warnings import catch_warnings, simplefilter

if TYPE_CHECKING:
    from headrace_broker.simulation.network import SimulatedNetwork

T = TypeVar("T")

_CALLBACK_US = 2
"""The simulated duration of a callback. Time therefore advances even for a node that never waits."""
_FILE_WORK_US = (50, 5_000)
"""The minimum and maximum duration of a call in `run_in_executor`. The minimum is the duration of a
call without I/O, and the maximum that of an fsync on a busy disk."""
_CALLBACKS_MAX = 5_000_000


class Clock:
    """A node's monotonic clock and wall clock. Both run at `rate`. The wall clock is set forward by `wall_ahead_us`."""

    __slots__ = ("rate", "wall_ahead_us")

    def __init__(self, rate: float = 1.0, wall_ahead_us: int = 0) -> None:
        self.rate = rate
        self.wall_ahead_us = wall_ahead_us


class SimulatedNode:
    """The process of a node. Each restart of the node creates a new SimulatedNode object with the same name."""

    __slots__ = ("clock", "file_work_us", "is_dead", "is_paused", "name", "on_crash", "ready", "tasks")

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock or Clock()
        self.is_dead = False
        self.is_paused = False
        self.file_work_us = _FILE_WORK_US
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.on_crash: list[Callable[[], None]] = []


_current: ContextVar[SimulatedNode] = ContextVar("simulated node")


class _Task(asyncio.Task[Any]):
    """A task whose hash is a sequence number, so that iterating over a set of tasks has the same order in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class CallbackLimitError(Exception):
    """The simulation ran more callbacks than any correct run needs, so some code loops without waiting."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of all nodes in a simulation."""

    def __init__(self, seed: int, epoch_ms: int = 1_700_000_000_000) -> None:
        self.rng = Random(seed)
        self.now_us = 0
        self.harness = SimulatedNode("harness")
        self._running = self.harness
        self.network: SimulatedNetwork | None = None
        self.failures: list[dict[str, Any]] = []
        self.callbacks = 0
        self.on_callback: Callable[[SimulatedNode], None] | None = None
        """Called after each callback, with the node that the callback belongs to."""
        self._epoch_us = epoch_ms * 1000
        self._ready: list[SimulatedNode] = []
        self._timers: list[tuple[int, int, SimulatedNode, asyncio.Handle]] = []
        self._sequence = 0
        self._tasks_created = 0
        self._is_closed = False
        self._crashed_nodes: list[SimulatedNode] = []

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the simulation until `work` is done and return its result."""
        _set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done():
                if self.callbacks > _CALLBACKS_MAX:
                    raise CallbackLimitError(
                        f"{self.callbacks} callbacks ran in {self.now_us / 1e6:.1f} s of simulated time, more than the "
                        f"limit of {_CALLBACKS_MAX}"
                    )
                if not self._step():
                    raise RuntimeError(
                        "the simulation is deadlocked: no callback or timer is left, but the coroutine is not done"
                    )
            result: T = task.result()
            return result
        finally:
            _set_running_loop(None)

    def _step(self) -> bool:
        """Run one callback, or advance simulated time to the next timer.

        Return False if no callback and no timer is left.
        """
        timers = self._timers
        while timers and timers[0][0] <= self.now_us:
            _, _, node, handle = heapq.heappop(timers)
            self._enqueue(node, handle)
        ready = self._ready
        while ready:
            index = int(self.rng.random() * len(ready)) if len(ready) > 1 else 0
            node = ready[index]
            if node.is_dead or node.is_paused or not node.ready:
                ready[index] = ready[-1]
                ready.pop()
                continue
            handle = node.ready.popleft()
            if not node.ready:
                ready[index] = ready[-1]
                ready.pop()
            if not handle.cancelled():
                self.now_us += _CALLBACK_US
                self.callbacks += 1
                self._running = node
                handle._run()
                if self.on_callback is not None:
                    self.on_callback(node)
            return True
        if not timers:
            return False
        self.now_us = max(self.now_us, timers[0][0])
        return True

    def _enqueue(self, node: SimulatedNode, handle: asyncio.Handle) -> None:
        if node.is_dead or self._is_closed:
            return
        node.ready.append(handle)
        if len(node.ready) == 1 and not node.is_paused:
            self._ready.append(node)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def run_in_node(self, node: SimulatedNode, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Call `callback` in the context of `node`."""
        context = copy_context()
        context.run(_current.set, node)
        return context.run(callback, *arguments)

    def current_node(self) -> SimulatedNode:
        """Return the node whose callback is running."""
        return _current.get(self.harness)

    def crash(self, node: SimulatedNode) -> None:
        """Kill a node between two callbacks, without any cleanup."""
        node.is_dead = True
        node.ready.clear()
        for task in node.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        # Keep the node's coroutines: their garbage collection would run their `finally` blocks, which a
        # killed process does not run.
        self._crashed_nodes.append(node)
        for listener in node.on_crash:
            listener()

    def pause(self, node: SimulatedNode) -> None:
        """Pause a node, as SIGSTOP does."""
        node.is_paused = True

    def resume(self, node: SimulatedNode) -> None:
        """Resume a paused node, as SIGCONT does."""
        if node.is_paused:
            node.is_paused = False
            if node.ready and not node.is_dead:
                self._ready.append(node)

    # -- time --------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_us * self.current_node().clock.rate / 1e6

    def wall_ms(self) -> int:
        """Return the current node's wall-clock time."""
        clock = self.current_node().clock
        return int(self._epoch_us + self.now_us * clock.rate + clock.wall_ahead_us) // 1000

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(context.get(_current, self.harness), handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else copy_context()
        node = context.get(_current, self.harness)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._schedule(max(self.now_us, int(when * 1e6 / node.clock.rate) + 1), node, handle)
        return handle

    def call_after_us(self, delay_us: int, node: SimulatedNode, callback: Any, *args: Any) -> None:
        """Call `callback` in `node` after `delay_us` of simulated time, unless the node is dead by then.

        The rate of the node's clock does not change the delay.
        """
        context = copy_context()
        context.run(_current.set, node)
        self._schedule(self.now_us + delay_us, node, asyncio.Handle(callback, args, self, context))

    def _schedule(self, at_us: int, node: SimulatedNode, handle: asyncio.Handle) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (at_us, self._sequence, node, handle))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `_step` skips the cancelled handle when its time is reached."""

    # -- futures, tasks, threads -------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name or "task", context=context)
        self._tasks_created += 1
        task.number = self._tasks_created
        node = (context or copy_context()).get(_current, self.harness)
        node.tasks.add(task)
        task.add_done_callback(node.tasks.discard)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` as a single callback after a random delay."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - the future raises the error in the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        node = self.current_node()
        self.call_after_us(self.rng.randint(*node.file_work_us), node, work)
        return future

    # -- the network -------------------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        assert self.network is not None
        return await self.network.connect(protocol_factory, host, port)

    # -- the rest of asyncio's event loop interface ------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: the simulation has no debug mode."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End the simulation. Callbacks that are scheduled after this call are dropped."""
        self._is_closed = True
        with catch_warnings():
            simplefilter("ignore", RuntimeWarning)  # coroutines that were never awaited cause warnings
            for node in [self.harness, *self._crashed_nodes]:
                for task in node.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine: Any = task.get_coro()
                    if getcoroutinestate(coroutine) == CORO_CREATED:
                        coroutine.close()
        self._crashed_nodes.clear()
        self._timers.clear()
        self._ready.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Store an exception that a callback raised, unless the callback killed its own process."""
        if not (self._running.is_dead or self._is_closed):
            self.failures.append({**context, "node": self._running.name})

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: the simulation does not track asynchronous generators."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the simulation has no executor."""
