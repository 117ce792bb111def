"""Staying awake between requests that follow each other closely.

A processor without work is put to sleep, and under a hypervisor waking it costs more than answering a small request.
So while small pieces follow each other closely (a producer that flushes each record, the fetches by which replicas say
that they have it, a coordinator's client), the loop looks for the next one for a moment before it sleeps, and lets
other processes go first. It costs no more processor time per request than sleeping does, because a processor that slept
works with cold caches.

Only traffic that has kept that rhythm for a while is waited for, and one pause or one large piece ends it: what is
spent in vain is less than `_WAIT_NS` in `_RHYTHM` pieces. On a machine with one processor nothing is gained, and
nothing is done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter_ns

_SMALL_BYTES = 4096
"""What is larger is bulk: its senders do not wait for each, and want the processor for themselves."""
_CLOSE_NS = 500_000
_WAIT_NS = 400_000
_RHYTHM = 16

_let_others_go_first: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Wakefulness:
    """One per event loop; connections say when they have worked off what they had received."""

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
        self._heard_ns = 0
        self._in_rhythm = 0
        self._is_awake = False

    def heard(self, size_bytes: int) -> None:
        """A piece of that size came in, and is worked off."""
        now_ns = self._clock_ns()
        is_close = size_bytes <= _SMALL_BYTES and now_ns - self._heard_ns < _CLOSE_NS
        self._in_rhythm = self._in_rhythm + 1 if is_close else 0
        self._heard_ns = now_ns
        if self._in_rhythm >= _RHYTHM and not self._is_awake and self._is_useful:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._in_rhythm and self._clock_ns() - self._heard_ns < _WAIT_NS:
            _let_others_go_first()
            self._loop.call_soon(self._look)  # the loop polls its sockets without sleeping while this is due
        else:
            self._is_awake = False
            self._in_rhythm = 0


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
