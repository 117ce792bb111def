"""In-memory storage that simulates a kill of the process before a given rename, so tests can check the next start."""

from __future__ import annotations

from headrace_broker.log.storage import MemoryStorage


class Killed(BaseException):
    """Simulates a kill of the process. It is a BaseException, so that no handler of Exception catches it."""


class KilledStorage(MemoryStorage):
    """Storage in memory that performs `renames_left` renames and raises `Killed` at the next rename."""

    renames_left = 1 << 30

    def rename(self, source: str, target: str) -> None:
        if self.renames_left == 0:
            raise Killed
        self.renames_left -= 1
        super().rename(source, target)
