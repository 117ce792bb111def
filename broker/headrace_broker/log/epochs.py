"""The leader epoch cache of a partition: the start offset of each leader epoch (KIP-101, KIP-279).

This module does no I/O: the caller writes `entries` to the checkpoint whenever a method returns True.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochCache:
    """The (leader epoch, start offset) entries. Leader epochs strictly increase; start offsets never decrease."""

    __slots__ = ("_epochs", "_start_offsets")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._start_offsets, strict=True))

    @property
    def latest_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Set the start offset of the leader epoch `epoch`.

        Entries with a later epoch or a larger start offset are removed. Returns whether any entry changed.
        """
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._start_offsets[-1]:
            return False
        if epoch < 0:
            return False
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._start_offsets, start_offset))
        del self._epochs[keep:], self._start_offsets[keep:]
        self._epochs.append(epoch)
        self._start_offsets.append(start_offset)
        return True

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`, or -1 if it is unknown."""
        index = bisect_right(self._start_offsets, offset) - 1
        return self._epochs[index] if index >= 0 else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (the largest known leader epoch that is at most `epoch`, the end offset of that leader epoch).

        Return (-1, -1) if no epoch is known, or if `epoch` is larger than all known epochs. An epoch ends at the start
        offset of the next known epoch; the latest epoch ends at the log end offset. If `epoch` is before the first
        known epoch, the result is (`epoch`, the start offset of the first known epoch).
        """
        if epoch < 0 or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        if index == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET  # `epoch` is larger than every known epoch
        if index == 0:
            return epoch, self._start_offsets[0]
        return self._epochs[index - 1], self._start_offsets[index]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove the leader epochs that begin at or after `end_offset`. Returns whether any entry changed."""
        keep = bisect_left(self._start_offsets, end_offset)
        changed = keep < len(self._epochs)
        del self._epochs[keep:], self._start_offsets[keep:]
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove the leader epochs that end at or before `start_offset`.

        The leader epoch that contains `start_offset` then begins at `start_offset`. Returns whether any entry changed.
        """
        index = bisect_right(self._start_offsets, start_offset) - 1
        if index < 0 or (index == 0 and self._start_offsets[0] == start_offset):
            return False
        del self._epochs[:index], self._start_offsets[:index]
        self._start_offsets[0] = start_offset
        return True
