"""The metadata log on disk, in KRaft's own format: `__cluster_metadata-0`, its snapshots and `quorum-state`.

Implements the protocol `raft.log_port.RaftLog` with files, and converts between metadata records and record batches.
`raft` decides which records are committed. A sync has three steps: `files_to_sync` lists the files, a thread syncs
them, and `sync_completed` advances the flushed offset, but not past a truncation that happened during the sync.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.segment import INDEX_SUFFIXES, LOG_SUFFIX, file_name, offset_of
from headrace_broker.log.storage import Storage
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.protocol.control_records import (
    LeaderChangeMessage,
    Voter,
    decode_control_type,
    decode_control_value,
    encode_control_value,
)
from headrace_broker.protocol.errors import ApiError, ProtocolError
from headrace_broker.protocol.metadata_records import MetadataRecord, decode_metadata_record, encode_metadata_record
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import FILE_NAME, QuorumState, QuorumStateError
from headrace_broker.records.batch import BatchHeader, CorruptBatchError, iter_batches, read_header
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch
from headrace_broker.records.reader import read_batch, read_columns
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.metadata_corruption import end_of_valid_batches, find_corruption
from headrace_broker.server.kraft.snapshot_files import SnapshotError, SnapshotFiles

logger = logging.getLogger(__name__)

_READ_BYTES = 4 * 1024 * 1024
_CONFIG = LogConfig(
    retention_ms=-1,
    retention_bytes=-1,
    max_message_bytes=8 * 1024 * 1024,
    file_delete_delay_ms=0,
    preallocate=True,
)
_RESTORE_HINT = (
    "restore {0} from a copy. Or, if the other voters have a leader, delete everything in {0} except quorum-state: "
    "this node then fetches the metadata from the leader"
)

MetadataBatch = tuple[Sequence[MetadataRecord], int, int]
"""(records of one batch, offset of the last record, epoch of the batch)."""


class MetadataLog:
    """The metadata partition's log and snapshots. All methods run on the event loop."""

    def __init__(
        self,
        storage: Storage,
        directory: LogDirectory,
        now_ms: Callable[[], int],
        *,
        segment_bytes: int = _CONFIG.segment_bytes,
        segment_ms: int = _CONFIG.segment_ms,
    ) -> None:
        self._storage = storage
        self._log_directory = directory
        self._directory = directory.partition_path(CLUSTER_METADATA_TOPIC, 0)
        self._now_ms = now_ms
        # batches that this node appended as leader; it applies them without reading the log
        self._appended: deque[MetadataBatch] = deque()
        self.snapshots = SnapshotFiles(storage, self._directory)
        self.replayed_bytes = 0
        """Bytes of the log that this process has replayed or appended."""
        self.voters: frozenset[int] = frozenset()
        """The voters in the last LeaderChange record, empty before the first one."""
        if storage.exists(self._directory):
            # Sync before reading: a power failure must not undo a vote or a snapshot that this process has read.
            storage.sync_directory(self._directory)
        bases = self._segment_bases()
        self._snapshot, self._snapshot_records = self._load_snapshot(bases[0] if bases else 0)
        self._check_for_corruption()
        self.log = PartitionLog.open(
            storage,
            self._directory,
            CLUSTER_METADATA_TOPIC,
            0,
            replace(_CONFIG, segment_bytes=segment_bytes, segment_ms=segment_ms),
            now_ms(),
            was_closed_cleanly=directory.was_closed_cleanly,
            log_start_offset=self._start_offset(bases[0] if bases else 0),
            may_have_gaps=False,
        )
        if self._snapshot is not None and not self._continues_snapshot(self._snapshot):
            self._reset_to_snapshot(self._snapshot)
        self._flushed_offset = self.log.recovery_point if directory.was_closed_cleanly else self.log.log_start_offset
        self._syncing_up_to = -1
        self._syncing_rolled_to = self._syncing_truncations = 0

    def _segment_bases(self, suffixes: str | tuple[str, ...] = LOG_SUFFIX) -> list[int]:
        """Return the base offsets of the segments that have a file with one of these suffixes, in order."""
        names = self._storage.listdir(self._directory) if self._storage.exists(self._directory) else []
        return sorted({offset_of(name) for name in names if name.endswith(suffixes)})

    def _check_for_corruption(self) -> None:
        """Raise StartError if a segment with records after the latest snapshot is corrupt or incomplete.

        Otherwise, recovery would truncate these records, although they may be committed.
        """
        covered = self._snapshot[0] if self._snapshot is not None else 0
        bases = self._segment_bases((LOG_SUFFIX, *INDEX_SUFFIXES))
        for base, end in zip(bases, [*bases[1:], None], strict=False):
            if end is None or end > covered:
                self._check_segment(base, end)

    def _check_segment(self, base: int, end: int | None) -> None:
        """Raise StartError if the segment with the base offset `base` is corrupt or incomplete.

        `end` is the base offset of the next segment, or None for the last segment.
        """
        path = f"{self._directory}/{file_name(base, LOG_SUFFIX)}"
        log = self._storage.read(path) if self._storage.exists(path) else None
        if log is None:
            problem = "is missing, but its index files exist"
        elif found := find_corruption(log):
            problem = f"is corrupt at byte {found[0]}, and has valid metadata from byte {found[1]} on"
        elif end and self._log_directory.was_closed_cleanly and end_of_valid_batches(log, base)[1] < end:
            # Checked only after a clean shutdown: a crash may lose the unsynced end of a segment.
            problem = f"ends before offset {end}, where the next segment begins"
        else:
            return
        raise StartError(f"{path} {problem}: {_RESTORE_HINT.format(self._directory)}")

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _load_snapshot(self, base_offset: int) -> tuple[OffsetAndEpoch | None, list[MetadataRecord]]:
        """Return (end offset, epoch) of the newest valid snapshot, and the snapshot's records.

        If there is no valid snapshot, return None and an empty list.

        `base_offset` is the base offset of the first segment. If it is not 0, and no valid snapshot contains the
        earlier records, this method raises StartError.
        """
        for snapshot in reversed(self.snapshots.ids.copy()):
            if snapshot[0] < base_offset:
                break
            try:
                return snapshot, self.snapshots.records(snapshot)
            except SnapshotError as error:
                logger.error("Snapshot %s is corrupt and is ignored: %s", self.snapshots.path(snapshot), error)
                self.snapshots.ids.remove(snapshot)
        if base_offset > 0:
            raise StartError(
                f"the metadata log in {self._directory} begins at offset {base_offset} and has no valid snapshot of "
                f"the records before this offset: {_RESTORE_HINT.format(self._directory)}"
            )
        return None, []

    def _continues_snapshot(self, snapshot: OffsetAndEpoch) -> bool:
        """Return whether the log contains the snapshot's last offset, in the snapshot's epoch or a later epoch.

        After a crash, the log may not contain this offset. This is the case if the log had diverged from the leader's
        log, and the process fetched the leader's snapshot but crashed before it reset the log to the snapshot.
        """
        end_offset, epoch = snapshot
        known = self.log.epoch_for_offset(max(end_offset - 1, self.log_start_offset))
        return self.log_end_offset >= end_offset and not 0 <= known < epoch

    def _start_offset(self, base_offset: int) -> int:
        """Discard the snapshots that end before `base_offset`, and return the log start offset.

        `base_offset` is the base offset of the first segment. The log start offset is 0, or the end offset of the
        oldest remaining snapshot if the first segments were deleted.
        """
        for snapshot in [known for known in self.snapshots.ids if known[0] < base_offset]:
            self.snapshots.discard(snapshot)
        return self.snapshots.ids[0][0] if base_offset > 0 else 0

    def pop_snapshot_records(self) -> tuple[OffsetAndEpoch | None, list[MetadataRecord]]:
        """Return the snapshot that replay begins with, and its records.

        To free memory, the log then discards the records. Later calls return no records.
        """
        records, self._snapshot_records = self._snapshot_records, []
        return self._snapshot, records

    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """Return (end offset, epoch) of the snapshot that ends at the log start offset.

        Return None if the log begins at offset 0.
        """
        if self.log_start_offset == 0:
            return None
        return next((known for known in self.snapshots.ids if known[0] == self.log_start_offset), None)

    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """Return (end offset, epoch) of the newest complete snapshot, or None if there is no snapshot."""
        return self.snapshots.ids[-1] if self.snapshots.ids else None

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        """Return (size of the snapshot, up to `size_bytes_max` of its bytes from `position` on).

        Return None if there is no such snapshot.
        """
        return self.snapshots.read_chunk(snapshot, position, size_bytes_max)

    def append_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        """Write a chunk of a snapshot that is being fetched. Raises OSError."""
        self.snapshots.write_chunk(snapshot, position, data)

    def finish_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Check a snapshot that was fetched completely, and replace the log with it. Raises OSError."""
        try:
            records = self.snapshots.part_records(snapshot)
        except SnapshotError as error:
            self.snapshots.discard(snapshot)
            raise OSError(errno.EIO, f"the snapshot that was fetched from the leader is corrupt: {error}") from None
        self.snapshots.sync_part(snapshot)
        self.snapshots.finish(snapshot)
        self.snapshots.sync_names()
        self._reset_to_snapshot(snapshot)
        self._snapshot, self._snapshot_records = snapshot, records
        for older in [known for known in self.snapshots.ids if known[0] < snapshot[0]]:
            self.snapshots.discard(older)

    def _reset_to_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        self.log.truncate_fully_and_start_at(snapshot[0], self._now_ms())
        self._remove_deleted()
        self._appended.clear()
        self._flushed_offset = snapshot[0]
        self._syncing_up_to = -1

    def roll(self) -> None:
        """Roll a new segment. The current segment can then be deleted when a later snapshot contains its records."""
        self.log.roll(self._now_ms())

    def delete_before(self, snapshot: OffsetAndEpoch) -> None:
        """Delete the segments whose records are all in this snapshot, and the older snapshots. Raises ApiError.

        If there is no such segment and the log starts at the end offset of an older snapshot, keep all snapshots.
        """
        self.log.delete_segments_before(snapshot[0], self._now_ms())
        self._remove_deleted()
        if self.log_start_offset in (0, snapshot[0]):  # otherwise the log still begins at an older snapshot
            for older in [known for known in self.snapshots.ids if known < snapshot]:
                self.snapshots.discard(older)

    def _remove_deleted(self) -> None:
        for path in self.log.pop_expired_files(self._now_ms()):
            self._storage.remove(path)

    # -- quorum-state ------------------------------------------------------------------------------------------------

    def read_state(self) -> QuorumState:
        """Read this node's vote and epoch. Raises StartError."""
        path = f"{self._directory}/{FILE_NAME}"
        try:
            return QuorumState.from_json(self._storage.read(path))
        except FileNotFoundError:
            return QuorumState()
        except QuorumStateError as error:
            raise StartError(
                f"{path}: {error}: restore the file from a copy or, if the other voters have a leader, delete it"
            ) from None

    def write_state(self, state: QuorumState) -> None:
        """Write and sync quorum-state. This method blocks, so call it in a thread. Raises OSError."""
        self._storage.write_atomic(f"{self._directory}/{FILE_NAME}", state.to_json())
        self._storage.sync_directory(self._directory)

    # -- RaftLog -----------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self._flushed_offset

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record.

        If the log is empty, this is the epoch of the latest snapshot, or 0 if there is no snapshot.
        """
        if self.log.log_end_offset > self.log.log_start_offset:
            return max(self.log.latest_epoch, 0)
        snapshot = self.latest_snapshot()
        return 0 if snapshot is None else snapshot[1]

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return (end offset, epoch) of the largest epoch in the log that is at most `epoch`."""
        known, end_offset = self.log.end_offset_for_epoch(epoch)
        first = self.earliest_snapshot()
        if first is not None and (known < 0 or (end_offset == self.log_start_offset and known == epoch)):
            return first
        return (end_offset, known) if known >= 0 else (self.log_end_offset, self.last_fetched_epoch)

    def read(self, offset: int, size_bytes_max: int) -> bytes:
        """Read whole batches from `offset` on: at least one batch, unless `offset` is the log end offset."""
        found = self.log.read(offset, size_bytes_max, upper_bound_offset=self.log_end_offset, min_one_batch=True)
        return b"".join(found.buffers)

    def append_as_follower(self, records: bytes) -> None:
        """Append the leader's batches unchanged. Raises ApiError."""
        self.log.append_as_follower(records, now_ms=self._now_ms())

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        """Append the LeaderChange control record, the first record of `epoch`. Raises ApiError.

        `granting` contains the voters that granted their vote to `leader_id`.
        """
        message = LeaderChangeMessage(
            version=0,
            leader_id=leader_id,
            voters=[Voter(voter_id=voter) for voter in voters],
            granting_voters=[Voter(voter_id=voter) for voter in granting],
        )
        self.voters = frozenset(voters)
        value = encode_control_value(message)
        self._append(build_control_batch(ControlType.LEADER_CHANGE, value, timestamp=self._now_ms()), epoch)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to `offset`. Raises ApiError."""
        self.log.truncate_to(offset, self._now_ms())
        end_offset = self.log_end_offset
        self._flushed_offset = min(self._flushed_offset, end_offset)
        self._syncing_up_to = min(self._syncing_up_to, end_offset)
        self._appended.clear()

    # -- records -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord], epoch: int) -> int:
        """Append one batch as leader of `epoch` and return its last offset. Raises ApiError."""
        values: list[bytes | None] = [encode_metadata_record(record) for record in records]
        batch = build_batch(RecordColumns(values=values, timestamps=self._now_ms()))
        last_offset = self._append(batch, epoch)
        self.replayed_bytes += len(batch)
        self._appended.append((records, last_offset, epoch))
        return last_offset

    def _append(self, batch: bytearray, epoch: int) -> int:
        info = self.log.append_as_leader(
            memoryview(batch), leader_epoch=epoch, now_ms=self._now_ms(), origin=AppendOrigin.CONTROLLER
        )
        return info.last_offset

    def batches(self, offset: int, end_offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches of metadata records from `offset` to `end_offset`, oldest first. Raises StartError."""
        appended = self._appended
        while appended and appended[0][1] < offset:
            appended.popleft()
        if appended and appended[0][1] - len(appended[0][0]) + 1 == offset:
            while appended and appended[0][1] < end_offset:
                batch = appended.popleft()
                offset = batch[1] + 1
                yield batch
        try:
            yield from self._read_batches(offset, end_offset)
        except (ApiError, CorruptBatchError, ProtocolError) as error:
            hint = _RESTORE_HINT.format(self._directory)
            raise StartError(f"{self._directory} is corrupt ({error}): {hint}") from None

    def _read_batches(self, offset: int, end_offset: int) -> Iterator[MetadataBatch]:
        while offset < end_offset:
            buffer = self.read(offset, _READ_BYTES)
            before = offset
            for position, header in iter_batches(buffer):
                if header.last_offset >= end_offset:
                    return
                offset = header.last_offset + 1
                if header.is_control:
                    self._update_voters(buffer, position, header)
                if header.is_control or header.last_offset < before:
                    continue
                self.replayed_bytes += header.size_bytes
                columns = read_columns(memoryview(buffer)[position : position + header.size_bytes])
                records = [decode_metadata_record(value) for value in columns.values if value is not None]
                yield records, header.last_offset, header.partition_leader_epoch
            if offset == before:
                raise StartError(f"the metadata log in {self._directory} cannot be read at offset {offset}")

    def _update_voters(self, buffer: bytes, position: int, header: BatchHeader) -> None:
        columns = read_batch(memoryview(buffer), position, header)
        for key, value in zip(columns.keys or (), columns.values, strict=True):
            if decode_control_type(key or b"") == ControlType.LEADER_CHANGE:
                message = decode_control_value(ControlType.LEADER_CHANGE, value or b"")
                assert isinstance(message, LeaderChangeMessage)
                self.voters = frozenset(voter.voter_id for voter in message.voters)

    def timestamp_of(self, offset: int) -> int | None:
        """Return the timestamp of the batch that contains `offset`, or None if `offset` is not in the log.

        The timestamp is the time of the controller's clock when the controller appended the batch.
        """
        try:
            buffer = self.read(offset, 1)
        except ApiError:
            return None
        return read_header(buffer).max_timestamp if buffer else None

    # -- syncing -----------------------------------------------------------------------------------------------------

    def files_to_sync(self) -> list[str]:
        """Begin a sync of all appended records. Return the files that a thread must sync (fdatasync).

        Raises ApiError.
        """
        self._syncing_up_to = self.log_end_offset
        self._syncing_rolled_to = self.log.segments[-1].base_offset
        self._syncing_truncations = self.log.truncations
        return self.unflushed_files()

    def unflushed_files(self) -> list[str]:
        """Return the files with data that is not synced yet."""
        return self.log.unflushed_files(with_active=True)[0]

    def sync(self, paths: Sequence[str]) -> None:
        """Sync the files to disk (fdatasync). This method blocks, so call it in a thread. Raises OSError."""
        for path in paths:
            self._storage.sync(path)

    def sync_completed(self) -> None:
        """Advance the flushed offset after the sync that `files_to_sync` began."""
        self._flushed_offset = max(self._flushed_offset, self._syncing_up_to)
        self._syncing_up_to = -1
        self.log.complete_flush(self._syncing_rolled_to, self._syncing_truncations, None, self._now_ms())

    def sync_failed(self, error: OSError) -> str:
        """Take the log offline, because a failed fsync may have lost dirty pages. Returns the reason."""
        reason = f"{self._directory}: sync failed: {error.strerror or error}"
        self.log.offline_reason = reason
        return reason

    def resume_if_space_available(self) -> None:
        """If the disk was full and has free space again, resume appending. Call this method every second."""
        if self.log.is_disk_full and self._log_directory.has_free_space():
            self.log.try_go_online()

    @property
    def is_closed_cleanly(self) -> bool:
        """Whether everything was synced when the files were closed."""
        return self.log.offline_reason is None and self.log.recovery_point == self.log_end_offset

    def close(self) -> None:
        """Close the files."""
        try:
            self.log.close(clean=True, now_ms=self._now_ms())
        except ApiError as error:
            logger.error("Metadata log: cannot close the log cleanly: %s", error.message)
