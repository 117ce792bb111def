"""Measures the peak resident memory of processes that start and end while something runs.

    with PeakMemory({"workers": lambda: [psutil.Process(...)]}) as peak:
        ...
    assert peak.bytes["workers"] < 400 << 20

The kernel keeps the peak of each process (VmHWM), so that no peak is missed between two samples.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil

_INTERVAL_S = 0.2
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process since its start, or 0 if it has ended."""
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found is not None else 0  # a zombie has no memory


class PeakMemory:
    """A context manager. `processes` has functions that return the running processes of each kind.

    `bytes` is the largest peak of one process of each kind.
    """

    def __init__(self, processes: Mapping[str, Callable[[], Iterable[psutil.Process]]]) -> None:
        self.bytes = dict.fromkeys(processes, 0)
        self._processes = processes
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in self.bytes.items())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._finished.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._finished.wait(_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for kind, find in self._processes.items():
            try:
                sizes = [peak_bytes(process.pid) for process in find()]
            except psutil.NoSuchProcess:
                continue  # it ended while it was searched
            self.bytes[kind] = max([self.bytes[kind], *sizes])
