"""Measures CPU time in units of the machine's speed, for tests of how much work the code does.

A limit in seconds is too short on a slow machine and proves nothing on a fast machine. A test therefore compares CPU
time with the CPU time that a fixed loop of Python code takes on the same machine in the same run, or compares the CPU
times of two sizes of the same work.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.raw_client import RawClient

GROWTH_FACTOR = 16
LINEAR_GROWTH_MAX = 64
"""Linear work grows by 16 in `growth`, or a few times more because of caches. Quadratic work grows by 256."""
_LOOP_COUNT = 100_000
_REPETITIONS = 5


def loop_cpu_s() -> float:
    """Return the CPU time of a fixed loop in this thread: about 10 ms on the machine for which the limits were chosen.

    The result is a median, because on a machine with other load the same loop may take twice as long.
    """
    return statistics.median(_loop_cpu_s() for _ in range(_REPETITIONS))


def _loop_cpu_s() -> float:
    started_s = time.thread_time()
    found: dict[int, bytes] = {}
    for number in range(_LOOP_COUNT):
        found[number & 1023] = b"%d" % number
    return time.thread_time() - started_s


def process_cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process have used, with nanosecond resolution."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@dataclass
class Blocking:
    """The longest time for which other clients were blocked, in CPU times of the loop."""

    loops: float = 0.0


@contextmanager
def measured_blocking(address: str, pid: int, send: Callable[[RawClient], object]) -> Iterator[Blocking]:
    """Call `send` again and again from another client while the body of the `with` statement runs.

    `send` sends a small request to the broker with this pid, and waits for the response. The result, which is set at
    the end of the body, is the CPU time that the broker has used before it responded. CPU time excludes the time in
    which the broker waits for a processor.
    """
    took_s: list[float] = []
    stop = threading.Event()

    def probe() -> None:
        with RawClient(address, timeout_s=60) as client:
            while not stop.is_set():
                started_s, cpu_before_s = time.perf_counter(), process_cpu_s(pid)
                send(client)
                took_s.append(min(time.perf_counter() - started_s, process_cpu_s(pid) - cpu_before_s))
                stop.wait(0.005)

    blocking = Blocking()
    loop_before_s = loop_cpu_s()
    prober = threading.Thread(target=probe)
    prober.start()
    try:
        yield blocking
    finally:
        stop.set()
        prober.join()
    blocking.loops = max(took_s) / max(loop_before_s, loop_cpu_s())
    print(f"other clients were blocked for the CPU time of {blocking.loops:.1f} loops")


@contextmanager
def not_blocked(address: str, pid: int, send: Callable[[RawClient], object], loops_max: float) -> Iterator[None]:
    """Check that the body of the `with` statement blocks other clients for less than `loops_max` loops."""
    with measured_blocking(address, pid, send) as blocking:
        yield
    assert blocking.loops < loops_max, f"other clients were blocked for the CPU time of {blocking.loops:.1f} loops"


def growth(work: Callable[[int], object], size: int) -> float:
    """Return how many times as much CPU time `work(GROWTH_FACTOR * size)` needs as `work(size)`.

    Each time is the smallest of several measurements.
    """
    small_s = min(_cpu_s_of(work, size) for _ in range(_REPETITIONS))
    return min(_cpu_s_of(work, GROWTH_FACTOR * size) for _ in range(_REPETITIONS)) / small_s


def _cpu_s_of(work: Callable[[int], object], size: int) -> float:
    started_s = time.thread_time()
    work(size)
    return time.thread_time() - started_s
