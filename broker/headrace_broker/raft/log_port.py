"""The interface through which `core.Raft` accesses the metadata log. Appends are synchronous.

To flush the log, `core.Raft` emits a `Flush` effect and continues in `Raft.on_flushed`.
"""

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
        """The offset below which all records are on disk, so that a power failure does not lose them."""

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record.

        If the log has no records, this is the epoch of the snapshot before the log, or 0 if there is no snapshot.
        """

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return (end offset, epoch) of the largest epoch in the log that is at most `epoch`."""

    def read(self, offset: int, size_bytes_max: int) -> bytes:
        """Return complete batches from `offset` on: at least one batch, unless the log ends at `offset`."""

    def append_as_follower(self, records: bytes) -> None:
        """Append the leader's batches unchanged."""

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        """Append the LeaderChange control record, the first record of `epoch`.

        `granting` contains the voters that granted their vote to `leader_id`.
        """

    def truncate_to(self, offset: int) -> None:
        """Delete every record from `offset` on."""

    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """Return (end offset, epoch) of the snapshot that ends at the log start offset.

        Return None if there is no such snapshot.
        """

    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """Return (end offset, epoch) of the newest complete snapshot."""

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        """Return (size of the snapshot, up to `size_bytes_max` of its bytes from `position` on).

        Return None if this node does not have the snapshot.
        """

    def append_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        """Write a chunk of a snapshot that is being downloaded. A chunk at position 0 restarts the download."""

    def finish_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Complete a downloaded snapshot, and replace the whole log with the snapshot."""
