"""Who does the cleaning for a broker: a process of its own, or, for logs in memory, the broker itself.

The process is started with the first job and ended when there is nothing to do; it goes with the broker, however that
dies, and can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import (
    CleanedSegment,
    CleaningFailed,
    CleaningJob,
    Report,
    decode_report,
    encode_job,
)
from headrace_broker.log.storage import DiskStorage, Storage
from headrace_broker.server.cleaning.cleaner_priority import OVERDUE

logger = logging.getLogger(__name__)

_LINE_BYTES_MAX = 64 * 1024 * 1024
_LOOK_S = 1.0


class CleanerHelper(Protocol):
    """Runs one job at a time."""

    def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[Report, None]:
        """Yield each finished segment, then `CleaningDone` or `CleaningFailed`.

        Ends early, with nothing running, once `is_wanted()` is false.
        """

    async def close(self) -> None:
        """Return when nothing runs any more; a later `clean` starts anew."""


def helper_for(storage: Storage) -> CleanerHelper:
    """Return what cleans logs on this storage: another process reaches only what is on disk."""
    return CleanerProcess() if isinstance(storage, DiskStorage) else InlineCleaner(storage)


class CleanerProcess:
    """The process of `cleaner_process`."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_overdue = False

    async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[Report, None]:
        """See `CleanerHelper`."""
        try:
            process = await self._running(job.is_overdue)
        except OSError as error:  # no descriptors, no memory
            yield CleaningFailed(f"cannot start the cleaner's process: {error.strerror or error}", is_lasting=False)
            return
        is_finished = False
        try:
            assert process.stdin is not None
            process.stdin.write(encode_job(job))
            while not is_finished:
                report = await self._next_report(process, is_wanted)
                if report is None:
                    return
                is_finished = not isinstance(report, CleanedSegment)
                yield report
        finally:
            if not is_finished:
                await self.close()

    async def _running(self, is_overdue: bool) -> Process:
        """The process: with processors that have nothing else to do it is content, unless the work is overdue."""
        if self._process is not None and self._process.returncode is None:
            if self._is_overdue == is_overdue:
                return self._process
            await self.close()
        self._is_overdue = is_overdue
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace_broker.server.cleaning.cleaner_process",
            str(os.getpid()),
            OVERDUE if is_overdue else "",
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return self._process

    async def _next_report(self, process: Process, is_wanted: Callable[[], bool]) -> Report | None:
        """Return the next line's report, None when nobody wants it any more."""
        assert process.stdout is not None
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while is_wanted():
                await asyncio.wait({reading}, timeout=_LOOK_S)
                if reading.done():
                    line = reading.result()
                    return decode_report(line) if line.endswith(b"\n") else await self._died(process)
            return None
        finally:
            reading.cancel()

    async def _died(self, process: Process) -> CleaningFailed:
        self._process = None
        status = await process.wait()
        return CleaningFailed(f"the cleaner's process ended with status {status}", is_lasting=False)

    async def close(self) -> None:
        """See `CleanerHelper`."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class InlineCleaner:
    """Cleans on the event loop, for logs that only this process can see."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[Report, None]:
        """See `CleanerHelper`."""
        for report in clean(self._storage, job, lambda size_bytes: None):
            yield report
            await asyncio.sleep(0)
            if not is_wanted():
                return

    async def close(self) -> None:
        """Nothing runs between two jobs."""
