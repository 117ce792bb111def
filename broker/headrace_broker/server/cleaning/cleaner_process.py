"""The cleaner process: `python -m headrace_broker.server.cleaning.cleaner_process PARENT_PID [overdue]`.

The process reads jobs from standard input and writes reports to standard output, one line of JSON each. It writes only
files with the `.cleaned` suffix, so it may be killed at any time. It exits at the end of its input and when its parent
dies.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time

from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import CleanerReport, CleaningFailed, decode_job, encode_report
from headrace_broker.log.compaction.throttle import CleanerThrottle
from headrace_broker.log.segment import CLEANED_SUFFIX
from headrace_broker.log.storage import Buffer, DiskFile, DiskStorage
from headrace_broker.server.cleaning.cleaner_priority import lower_priority
from headrace_broker.server.parent_death import die_with_parent

logger = logging.getLogger(__name__)

_PACE_BYTES = 1024 * 1024


class ParentDiedError(Exception):
    """The broker died, so the result is not needed."""


class CleanerStorage(DiskStorage):
    """The file system, with read-only access to all files except `.cleaned` files."""

    def open(self, path: str) -> DiskFile:
        if path.endswith(CLEANED_SUFFIX):
            return super().open(path)
        return DiskFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def write(self, path: str, data: Buffer) -> None:
        # do not write indexes that were rebuilt for a segment that the broker still uses
        if path.endswith(CLEANED_SUFFIX):
            super().write(path, data)


class Pace:
    """Sleeps to stay below log.cleaner.io.max.bytes.per.second, and raises ParentDiedError when the parent has died."""

    def __init__(self, bytes_per_second: float) -> None:
        self._throttle = CleanerThrottle(bytes_per_second)
        self._moved = 0
        self._parent = select.poll()
        self._parent.register(sys.stdin.fileno(), select.POLLHUP)

    def __call__(self, size_bytes: int) -> None:
        self._moved += size_bytes
        if self._moved >= _PACE_BYTES:
            delay_s = self._throttle.delay_s(self._moved, time.monotonic())
            self._moved = 0
            if self._parent.poll(max(0, int(delay_s * 1000))):
                raise ParentDiedError


def main() -> int:
    """Run cleaning jobs until the end of the input; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the broker handles SIGINT and stops this process
    lower_priority(sys.argv[2] if len(sys.argv) > 2 else "")
    if not die_with_parent(int(sys.argv[1]), signal.SIGKILL):
        return 0
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="[%(asctime)s] %(levelname)s %(message)s")
    storage = CleanerStorage()
    try:
        for line in sys.stdin.buffer:
            job = decode_job(line)
            try:
                for report in clean(storage, job, Pace(job.io_bytes_per_second)):
                    _write_report(report)
            except (ParentDiedError, BrokenPipeError):
                raise
            except Exception as error:  # a bug: the broker marks this log uncleanable and still cleans other logs
                logger.exception("Log directory %s: cleaning failed", job.directory)
                _write_report(CleaningFailed(f"{job.directory}: {type(error).__name__}: {error}", is_lasting=True))
    except (ParentDiedError, BrokenPipeError):
        return 0
    return 0


def _write_report(report: CleanerReport) -> None:
    sys.stdout.buffer.write(encode_report(report))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
