"""Staying awake between requests that follow each other closely.

A processor without work is put to sleep, and under a hypervisor waking it costs more than answering a small request.
So while one peer after the other sends a small request and waits for its answer (a producer that flushes each record,
a coordinator's client), the loop looks for the next request for a moment before it sleeps. It costs no more processor
time per request than sleeping does, because a processor that slept works with cold caches.

Only traffic that has kept that rhythm for a while is waited for, and one pause ends it: what is spent in vain is less
than `_WAIT_NS` in `_RHYTHM` requests. On a machine with one processor nothing is gained, and nothing is done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter_ns

SMALL_READ_BYTES = 4096
"""Larger requests are bulk: their senders do not wait for each, and want the processor for themselves."""
_CLOSE_NS = 250_000
_WAIT_NS = 150_000
_RHYTHM = 16


class Wakefulness:
    """One per event loop; connections say when they have answered all that a small read held."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        processors: int | None = None,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._loop = loop
        self._clock_ns = clock_ns
        self._is_useful = (processors or _processors()) > 1
        self._answered_ns = 0
        self._in_rhythm = 0
        self._is_awake = False

    def answered(self) -> None:
        """A small request has its answer, and its sender nothing else in flight."""
        now_ns = self._clock_ns()
        self._in_rhythm = self._in_rhythm + 1 if now_ns - self._answered_ns < _CLOSE_NS else 0
        self._answered_ns = now_ns
        if self._in_rhythm >= _RHYTHM and not self._is_awake and self._is_useful:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._clock_ns() - self._answered_ns < _WAIT_NS:
            self._loop.call_soon(self._look)  # the loop polls its sockets without sleeping while this is due
        else:
            self._is_awake = False
            self._in_rhythm = 0


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
