"""What the quorum's core needs of the metadata log: appends are immediate, only flushing takes time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

OffsetAndEpoch = tuple[int, int]


class RaftLog(Protocol):
    """The metadata partition's log and its snapshots."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int:
        """Up to where the log would survive a power failure."""

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot the log begins after; 0 when there is neither."""

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """(end offset, epoch) of the largest epoch that is not above `epoch`."""

    def read(self, offset: int, size_bytes_max: int) -> bytes:
        """Whole batches from `offset` on, at least one if there is any."""

    def append_as_follower(self, records: bytes) -> None:
        """Append the leader's batches as they are."""

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        """Append the control record that opens an epoch."""

    def truncate_to(self, offset: int) -> None:
        """Drop every record from `offset` on."""

    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """(end offset, epoch) of the snapshot that the log begins after, None when the log is whole."""

    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """(end offset, epoch) of the newest whole snapshot."""

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        """(size of the snapshot, its bytes from `position` on), None when it is not here."""

    def append_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        """Write a part of a snapshot that is being fetched; position 0 begins anew."""

    def finish_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """The fetched snapshot is whole: begin the log after it."""
