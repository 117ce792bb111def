"""The cleaner's process: `python -m headrace_broker.server.cleaning.cleaner_process PARENT_PID [overdue]`.

Reads jobs from standard input and writes reports to standard output, a line of JSON each. It never touches a file of a
log but those with `.cleaned` names, so it may be killed at any time. It ends when its input does, and with its parent.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time

from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import CleaningFailed, Report, decode_job, encode_report
from headrace_broker.log.compaction.throttle import Throttle
from headrace_broker.log.segment import CLEANED_SUFFIX
from headrace_broker.log.storage import Buffer, DiskFile, DiskStorage
from headrace_broker.server.cleaning.cleaner_priority import take_back_seat
from headrace_broker.server.parent_death import die_with_parent

logger = logging.getLogger(__name__)

_PACE_BYTES = 1024 * 1024


class ParentIsGoneError(Exception):
    """Nobody waits for this work any more."""


class CleanerStorage(DiskStorage):
    """The file system, but files of the live log can only be read."""

    def open(self, path: str) -> DiskFile:
        if path.endswith(CLEANED_SUFFIX):
            return super().open(path)
        return DiskFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def write(self, path: str, data: Buffer) -> None:
        if path.endswith(CLEANED_SUFFIX):  # an index of the live log that was missing is made anew in memory only
            super().write(path, data)


class Pace:
    """Waits as long as log.cleaner.io.max.bytes.per.second demands, and looks whether the parent lives."""

    def __init__(self, bytes_per_second: float) -> None:
        self._throttle = Throttle(bytes_per_second)
        self._moved = 0
        self._parent = select.poll()
        self._parent.register(sys.stdin.fileno(), select.POLLHUP)

    def __call__(self, size_bytes: int) -> None:
        self._moved += size_bytes
        if self._moved >= _PACE_BYTES:
            delay_s = self._throttle.delay_s(self._moved, time.monotonic())
            self._moved = 0
            if self._parent.poll(max(0, int(delay_s * 1000))):
                raise ParentIsGoneError


def main() -> int:
    """Clean what is asked for until nothing more is; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the broker's affair
    take_back_seat(sys.argv[2] if len(sys.argv) > 2 else "")
    if not die_with_parent(int(sys.argv[1]), signal.SIGKILL):
        return 0
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="[%(asctime)s] %(levelname)s %(message)s")
    storage = CleanerStorage()
    try:
        for line in sys.stdin.buffer:
            job = decode_job(line)
            try:
                for report in clean(storage, job, Pace(job.io_bytes_per_second)):
                    _tell(report)
            except (ParentIsGoneError, BrokenPipeError):
                raise
            except Exception as error:  # a fault of ours: this log is left alone, the others are not
                logger.exception("cleaning %s failed", job.directory)
                _tell(CleaningFailed(f"{job.directory}: {type(error).__name__}: {error}", is_lasting=True))
    except (ParentIsGoneError, BrokenPipeError):
        return 0
    return 0


def _tell(report: Report) -> None:
    sys.stdout.buffer.write(encode_report(report))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
