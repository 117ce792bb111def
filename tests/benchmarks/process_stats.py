"""Reads CPU time and memory of processes from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

IDLE_CPU_MAX = 0.05
"""The fraction of a processor that idle processes may use."""
IDLE_INTERVAL_S = 0.5
IDLE_TIMEOUT_S = 60
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident, proportional (PSS) and anonymous memory in MB of 10^6 bytes."""

    rss_mb: float
    pss_mb: float
    anonymous_mb: float = 0.0


def tree(pid: int) -> list[int]:
    """Return the pids of the process and all its descendants."""
    root = psutil.Process(pid)
    return [pid, *(child.pid for child in root.children(recursive=True))]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the total user and system time of running processes.

    The total includes the time of exited children that these processes have waited for.
    """
    total = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/stat")
        total += sum(int(field) for field in text.rsplit(")", 1)[1].split()[11:15]) if text else 0
    return total / _TICKS_PER_S


def wait_until_idle(roots: Iterable[int]) -> None:
    """Wait until the processes `roots` and their descendants are idle. Raises TimeoutError.

    The JVM's compilers keep running after a measurement. Without this wait, they would slow down the next measurement.
    """
    pids = [pid for root in roots for pid in tree(root)]
    deadline_s = time.monotonic() + IDLE_TIMEOUT_S
    before_s = cpu_s(pids)
    while True:
        time.sleep(IDLE_INTERVAL_S)
        after_s = cpu_s(pids)
        if after_s - before_s < IDLE_CPU_MAX * IDLE_INTERVAL_S:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the processes still use a processor after {IDLE_TIMEOUT_S} s without work")
        before_s = after_s


def thread_cpu_s(pid: int) -> dict[str, float]:
    """Return the user and system time of each thread of a process, or {} if the process has exited."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    texts = {thread: _read(f"/proc/{pid}/task/{thread}/stat") for thread in threads}
    return {
        thread: sum(map(int, text.rsplit(")", 1)[1].split()[11:13])) / _TICKS_PER_S
        for thread, text in texts.items()
        if text
    }


def memory(pids: Iterable[int]) -> Memory:
    """Return the total memory of the processes. The total PSS counts each shared page only once."""
    rss = pss = anonymous = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Rss:"):
                rss += int(line.split()[1])
            elif line.startswith("Pss:"):
                pss += int(line.split()[1])
            elif line.startswith("Anonymous:"):
                anonymous += int(line.split()[1])
    return Memory(rss * 1024 / 1e6, pss * 1024 / 1e6, anonymous * 1024 / 1e6)


def _read(path: str) -> str:
    """Read a /proc file of a process. Return "" if the process has exited."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def machine() -> dict[str, str]:
    """Return a description of this machine for the heading of the results."""
    model = next(
        (x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    import platform

    return {
        "processor": f"{os.cpu_count()} x {model}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
