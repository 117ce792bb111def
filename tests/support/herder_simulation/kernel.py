"""Runs events and processes in virtual time, without asyncio or a real clock. A process is a generator.

A process yields a delay in ms or a `Future`, and calls other generators with `yield from`. A `Scope` contains the
events of one worker: it drops them if the worker crashes, and defers them while the worker is paused.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

Steps: TypeAlias = Generator[Any, Any, Any]


class NoResponseError(Exception):
    """A request received no response, or its response was lost."""


class Future:
    """A result that arrives later."""

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def set(self, result: Any = None) -> None:
        """Set the result. If it is already set, do nothing."""
        if self.is_done:
            return
        self.is_done, self.result = True, result
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(result)

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with the result once it is set."""
        if self.is_done:
            callback(self.result)
        else:
            self._waiting.append(callback)


class Kernel:
    """The clock, the events and the random numbers of one run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000
        self.log: list[str] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `delay_ms`."""
        heapq.heappush(self._events, (self.now_ms + int(delay_ms), next(self._numbers), callback))

    def run_until(self, end_ms: int) -> None:
        """Run all events until `end_ms`."""
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, callback = heapq.heappop(self._events)
            callback()
        self.now_ms = end_ms

    def trace(self, text: str) -> None:
        """Add a line to the history."""
        self.log.append(f"{self.now_ms:>8} {text}")


class Scope:
    """Runs the events of one worker: drops them if the worker crashes, and defers them while the worker is paused."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.is_dead = False
        self.is_paused = False
        self._deferred: list[Callable[[], None]] = []

    def guard(self, callback: Callable[[], None]) -> None:
        """Call `callback` now if the worker is running, or at the end of the pause if the worker is paused.

        After a crash of the worker, `callback` is not called.
        """
        if self.is_paused:
            self._deferred.append(callback)
        elif not self.is_dead:
            callback()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after `delay_ms`, unless the returned timer is cancelled."""
        timer = Timer()
        self.kernel.call_later(delay_ms, lambda: self.guard(lambda: None if timer.is_cancelled else callback()))
        return timer

    def resume(self) -> None:
        """End a pause, and run the callbacks that were deferred during the pause."""
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for callback in deferred:
            self.call_later(self.kernel.rng.randint(0, 20), callback)

    def spawn(self, steps: Steps) -> Process:
        """Start a process that runs the generator `steps`."""
        process = Process(self, steps)
        process.advance(None)
        return process


class Timer:
    """An event that can be cancelled."""

    is_cancelled = False

    def cancel(self) -> None:
        """Cancel the event."""
        self.is_cancelled = True


class Process:
    """Runs a generator step by step: each `yield` waits for a delay or for a `Future`."""

    def __init__(self, scope: Scope, steps: Steps) -> None:
        self.done = Future()
        self._scope = scope
        self._steps = steps
        self._is_running = False
        self._is_cancelled = False

    def advance(self, value: Any) -> None:
        """Run the generator to its next yield. If `value` is an exception, raise it in the generator."""
        if self._is_cancelled or self.done.is_done:
            return
        self._is_running = True
        try:
            waited = self._steps.throw(value) if isinstance(value, Exception) else self._steps.send(value)
        except StopIteration as stop:
            self.done.set(stop.value)
            return
        finally:
            self._is_running = False
        if self._is_cancelled:
            self._steps.close()
        elif isinstance(waited, Future):
            waited.then(lambda result: self._scope.call_later(0, lambda: self.advance(result)) and None)
        else:
            self._scope.call_later(waited, lambda: self.advance(None))

    def cancel(self) -> None:
        """End the process at its current yield."""
        self._is_cancelled = True
        if not self._is_running:
            self._steps.close()
        self.done.set(None)


class Event:
    """A flag. A process can wait until the flag is set."""

    def __init__(self) -> None:
        self.is_set = False
        self._future = Future()

    def set(self) -> None:
        """Set the flag."""
        self.is_set = True
        self._future.set()

    def clear(self) -> None:
        """Clear the flag."""
        self.is_set = False
        if self._future.is_done:
            self._future = Future()

    def wait(self) -> Steps:
        """Wait until the flag is set."""
        while not self.is_set:
            yield self._future
