"""Runs a broker's cleaning jobs: in a separate process, or, for logs in memory, in the broker's process.

The executor starts the cleaner process for the first job and stops it when there are no more jobs. The cleaner process
exits when the broker exits or is killed, and it may be killed at any time.
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
    CleanerReport,
    CleaningFailed,
    CleaningJob,
    decode_report,
    encode_job,
)
from headrace_broker.log.storage import DiskStorage, Storage
from headrace_broker.server.cleaning.cleaner_priority import OVERDUE_ARGUMENT

logger = logging.getLogger(__name__)

_LINE_BYTES_MAX = 64 * 1024 * 1024
_POLL_S = 1.0


class CleaningExecutor(Protocol):
    """Runs cleaning jobs, one at a time."""

    def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
        """Yield each cleaned segment, then `CleaningDone` or `CleaningFailed`.

        Stops the job and returns early once `is_wanted()` is false.
        """

    async def close(self) -> None:
        """Stop the current job and wait until it has ended; `clean` may be called again afterwards."""


def cleaning_executor_for(storage: Storage) -> CleaningExecutor:
    """Return the executor for logs on this storage. A separate process can clean a log only if the log is on disk."""
    return CleanerProcess() if isinstance(storage, DiskStorage) else InlineCleaner(storage)


class CleanerProcess:
    """Runs `cleaner_process` as a child process."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_overdue = False

    async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
        """Clean in the child process; see `CleaningExecutor.clean`."""
        try:
            process = await self._running(job.is_overdue)
        except OSError as error:  # out of file descriptors or memory
            yield CleaningFailed(f"the cleaner process could not start: {error.strerror or error}", is_lasting=False)
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
        """Return the cleaner process. If no process is running, start one.

        The process has idle priority unless the job is overdue. A running process with the wrong priority is restarted.
        """
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
            OVERDUE_ARGUMENT if is_overdue else "",
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return self._process

    async def _next_report(self, process: Process, is_wanted: Callable[[], bool]) -> CleanerReport | None:
        """Return the next report, or None if `is_wanted()` is false."""
        assert process.stdout is not None
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while is_wanted():
                await asyncio.wait({reading}, timeout=_POLL_S)
                if reading.done():
                    line = reading.result()
                    return decode_report(line) if line.endswith(b"\n") else await self._process_died(process)
            return None
        finally:
            reading.cancel()

    async def _process_died(self, process: Process) -> CleaningFailed:
        self._process = None
        status = await process.wait()
        return CleaningFailed(f"the cleaner process exited with status {status}", is_lasting=False)

    async def close(self) -> None:
        """Kill the child process; see `CleaningExecutor.close`."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class InlineCleaner:
    """Cleans on the event loop, for logs in memory."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
        """Clean on the event loop; see `CleaningExecutor.clean`."""
        for report in clean(self._storage, job, lambda size_bytes: None):
            yield report
            await asyncio.sleep(0)
            if not is_wanted():
                return

    async def close(self) -> None:
        """Do nothing: no process or task runs between two jobs."""
