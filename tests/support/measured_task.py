"""A lakehouse sink task in a child process whose memory and batches a test measures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

from support.lakehouse_process import TaskProcess
from support.peak_memory import peak_bytes

_BATCH = re.compile(r"Committed batch \d+: ([\d,]+) rows in ([\d.]+) s")
_STOP_S = 120


class MeasuredTask(TaskProcess):
    """A running task. Use it as a context manager: the exit stops the task, and kills it after an error."""

    @property
    def batches(self) -> list[tuple[int, float]]:
        """The number of rows and the seconds of each committed batch."""
        found = (_BATCH.search(line) for line in self.lines)
        return [(int(each[1].replace(",", "")), float(each[2])) for each in found if each is not None]

    def reported(self, topic: str) -> int:
        """Return the last reported offset of partition 0 of a topic, or 0."""
        return self.offsets().get(f"{topic}/0", 0)

    def driver(self) -> list[psutil.Process]:
        """Return the task's process."""
        return [psutil.Process(self._process.pid)]

    def driver_peak_bytes(self) -> int:
        """Return the peak resident memory of the task's process until now."""
        return peak_bytes(self._process.pid)

    def jvms(self) -> list[psutil.Process]:
        """Return the task's JVM."""
        return [process for process in psutil.Process(self._process.pid).children() if process.name() == "java"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_running():
            self.close()
        elif error is None:
            self.stop(_STOP_S)
        else:
            self.kill()


def workers_of(jvms: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the Python workers of JVMs, with the daemons that fork them."""
    return [process for jvm in jvms for process in jvm.children(recursive=True) if process.name() != "java"]
