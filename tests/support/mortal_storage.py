"""Files in memory, and a process that ends at one of the renames: what its next start finds is what a kill leaves."""

from __future__ import annotations

from headrace_broker.log.storage import MemoryStorage


class Killed(BaseException):
    """The process is dead: nothing that handles an exception sees it."""


class MortalStorage(MemoryStorage):
    """Ends the process before the rename number `renames_left`."""

    renames_left = 1 << 30

    def rename(self, source: str, target: str) -> None:
        if self.renames_left == 0:
            raise Killed
        self.renames_left -= 1
        super().rename(source, target)
