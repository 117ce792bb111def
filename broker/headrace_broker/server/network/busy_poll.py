"""Busy polling: while small requests arrive in quick succession, the event loop polls its sockets and does not sleep.

The kernel puts an idle CPU to sleep. Under a hypervisor, waking the CPU takes longer than processing a small request.
Small requests arrive in quick succession, for example, from a producer that flushes each record, from followers, and
from clients of a group coordinator. In this situation, the loop polls its sockets for a moment before it sleeps, and
yields the CPU to other processes on each poll. Polling does not increase the CPU time per request: after a CPU has
slept, its caches are empty, and the CPU processes the next request more slowly.

Polling starts only after `_READS_IN_A_ROW` small reads in quick succession. It ends after one pause or one large read.
So for every `_READS_IN_A_ROW` reads, the loop wastes less than `_POLL_NS` on polling. On a machine with one CPU, busy
polling is off.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter_ns

_SMALL_BYTES = 4096
"""The maximum size of a small read, in bytes.

A client that sends more bytes at a time does not wait for each response, so the loop does not poll after a larger read.
"""
_CLOSE_NS = 500_000
_POLL_NS = 400_000
_READS_IN_A_ROW = 16

_yield_cpu: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class BusyPoll:
    """The busy polling of one event loop. Connections report each read after they have processed the data."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        processors: int | None = None,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._loop = loop
        self._clock_ns = clock_ns
        self._is_enabled = (processors or _processors()) > 1
        self._last_read_ns = 0
        self._close_reads = 0
        self._is_polling = False

    def record_read(self, size_bytes: int) -> None:
        """Record a read of `size_bytes`, and start polling if small reads arrive in quick succession.

        The caller has already processed the requests of this read.
        """
        now_ns = self._clock_ns()
        is_close = size_bytes <= _SMALL_BYTES and now_ns - self._last_read_ns < _CLOSE_NS
        self._close_reads = self._close_reads + 1 if is_close else 0
        self._last_read_ns = now_ns
        if self._close_reads >= _READS_IN_A_ROW and not self._is_polling and self._is_enabled:
            self._is_polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if self._close_reads and self._clock_ns() - self._last_read_ns < _POLL_NS:
            _yield_cpu()
            self._loop.call_soon(self._poll)  # with a callback pending, the loop polls its sockets without sleeping
        else:
            self._is_polling = False
            self._close_reads = 0


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
