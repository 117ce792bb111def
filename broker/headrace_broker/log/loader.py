"""Loads a partition's log from its directory.

The loader first completes or undoes operations that a crash interrupted. After a clean shutdown, the loader does not
check every batch. After a crash, the loader recovers the segments after the recovery point.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from headrace_broker.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    MalformedFileError,
    decode_epoch_checkpoint,
    decode_partition_metadata,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.producer_files import load_producers
from headrace_broker.log.producer_state import ProducerStateManager
from headrace_broker.log.recovery import drop_segments_from, recover
from headrace_broker.log.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    LogSegment,
    file_name,
    offset_of,
)
from headrace_broker.log.storage import Storage, is_disk_full_error
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


@dataclass(slots=True)
class LoadedLog:
    """The state of a log that was loaded from its directory."""

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    checkpoint_ahead_of_log: bool
    """Whether the checkpointed recovery point is larger than `recovery_point`."""
    epochs: LeaderEpochCache
    epochs_changed: bool
    """Whether `epochs` differs from the leader epoch checkpoint."""
    is_unsynced: bool
    """Whether the last shutdown was unclean.

    After an unclean shutdown, the leader epoch checkpoint may not be synced.
    """
    producers: ProducerStateManager
    topic_id: bytes | None
    is_corrupt: bool
    """Whether the log was closed cleanly, but some of its records or files are missing or corrupt."""


def load(
    storage: Storage,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    was_closed_cleanly: bool,
    recovery_point: int,
    log_start_offset: int,
    open_segments: OpenSegments,
    cleaner_offset: int = 0,
    checkpoint_time_ns: int = 0,
    may_have_gaps: bool = True,
    is_only_replica: bool = True,
) -> LoadedLog:
    """Load the log in `directory`, or create it if it does not exist. Raises OSError.

    Unless `is_only_replica` is set, segments that were modified after `checkpoint_time_ns` are recovered, even if they
    are before the recovery point. Such a segment was modified by another program, or by a compaction right before
    a crash.
    """
    storage.makedirs(directory)
    checkpointed_recovery_point = recovery_point
    names = _remove_leftovers(storage, directory)
    is_unsynced = bool(names) and not was_closed_cleanly
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        corrupt_offsets = _finish_swaps(storage, directory, names, open_segments)
        storage.sync_directory(directory)  # a power failure must not restore some of the replaced segments
        names = storage.listdir(directory)
        if corrupt_offsets and not is_only_replica:
            recovery_point = min(recovery_point, *corrupt_offsets)
    segments = [
        _existing_segment(storage, directory, base_offset, open_segments=open_segments, started_ms=now_ms)
        for base_offset in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX))
    ]
    orphans = _find_orphans(directory, names)
    first_lost_offset = min(map(offset_of, orphans), default=None)
    if first_lost_offset is not None:
        was_closed_cleanly = False
        recovery_point = min(recovery_point, first_lost_offset)
        if not is_only_replica:
            drop_segments_from(segments, sum(segment.base_offset < first_lost_offset for segment in segments))
        # Remove the indexes without a `.log` file only after dropping the segments. If the broker crashes between these
        # two steps, the next start must detect the missing records again.
        for name in orphans:
            storage.remove(f"{directory}/{name}")
        # Sync the removal of the indexes. If a power failure restored these indexes, the next start would drop the
        # records that this replica fetches again.
        storage.sync_directory(directory)
    trusted_from, trusted_to = (0, None) if was_closed_cleanly else (cleaner_offset, recovery_point)
    modified_from = (
        None if is_only_replica else _find_modified(segments, storage, checkpoint_time_ns, trusted_from, trusted_to)
    )
    if modified_from is not None:
        was_closed_cleanly = False
        recovery_point = min(recovery_point, modified_from)
    recovered_from = None if was_closed_cleanly else recovery_point
    epochs, saved_epochs = _load_epochs(storage, directory, names, segments, recovered_from)
    create_active_segment = partial(
        create_segment,
        storage,
        directory,
        config=config,
        now_ms=now_ms,
        open_segments=open_segments,
        tolerate_full_disk=bool(names),
    )
    if not segments:
        segments = [create_active_segment(log_start_offset)]
    producers: ProducerStateManager | None = None
    is_corrupt = first_lost_offset is not None
    if not names:  # a new log: nothing to recover
        end_offset = recovery_point = log_start_offset
        producers = ProducerStateManager()
        producers.clear(end_offset)
    elif was_closed_cleanly:
        try:
            end_offset = recovery_point = _end_offset_of(segments[-1])
            if end_offset < checkpointed_recovery_point:
                # Recover the log before any append. One of its batches has wrong offsets, so a later recovery would
                # truncate the log at this batch and lose the records appended until then.
                raise CorruptBatchError(
                    segments[-1].size_bytes,
                    f"the log ends at offset {end_offset}, before its recovery point {checkpointed_recovery_point}",
                )
            producers = load_producers(storage, directory, segments, end_offset)
        except CorruptBatchError as error:
            _log.warning(
                "Log %s: recovering the last segment although the log was closed cleanly: %s", directory, error
            )
            is_corrupt = True
            recovery_point = segments[-1].base_offset
    if producers is None:
        end_offset, producers = recover(
            storage,
            directory,
            segments,
            epochs,
            config,
            recovery_point,
            cleaner_offset=cleaner_offset,
            may_have_gaps=may_have_gaps,
        )
        recovery_point = min(recovery_point, end_offset)
    segments[-1].is_active = True
    start_offset = max(log_start_offset, segments[0].base_offset)
    if start_offset > end_offset:
        _log.warning(
            "Log %s: the log end offset %d is before the log start offset %d; deleting all segments and starting at "
            "offset %d",
            directory,
            end_offset,
            start_offset,
            start_offset,
        )
        for segment in segments:
            segment.mark_deleted()
        segments = [create_active_segment(start_offset)]
        end_offset = recovery_point = start_offset
        producers.clear(end_offset)
    if config.preallocate:
        segments[-1].preallocate()
    # If all records are lost, remove every leader epoch, because the epochs of the lost records are unknown.
    is_emptied = end_offset == start_offset and not was_closed_cleanly
    epochs.truncate_from_end(0 if is_emptied else end_offset)
    epochs.truncate_from_start(start_offset)
    return LoadedLog(
        segments=segments,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        recovery_point=recovery_point,
        checkpoint_ahead_of_log=recovery_point < checkpointed_recovery_point,
        epochs=epochs,
        epochs_changed=epochs.entries != saved_epochs,
        is_unsynced=is_unsynced,
        producers=producers,
        topic_id=read_topic_id(storage, directory),
        is_corrupt=is_corrupt,
    )


def _find_orphans(directory: str, names: Sequence[str]) -> list[str]:
    """Return the index files of segments whose `.log` file is missing.

    This broker always deletes the indexes of a segment before the `.log` file. If only the `.log` file is missing,
    another program has deleted it. The log then has a gap. The replica truncates its log at the gap and fetches the
    missing records again.
    """
    found = {offset_of(name) for name in names if name.endswith(LOG_SUFFIX)}
    orphans = [name for name in names if name.endswith(INDEX_SUFFIXES) and offset_of(name) not in found]
    for name in orphans:
        _log.error(
            "Index file %s/%s: the segment's %s file is missing, so this replica has lost the segment's records",
            directory,
            name,
            LOG_SUFFIX,
        )
    return orphans


def _find_modified(
    segments: Sequence[LogSegment], storage: Storage, checkpoint_time_ns: int, trusted_from: int, trusted_to: int | None
) -> int | None:
    """Return the base offset of the first modified segment that recovery would not check, or None.

    A segment was modified if its file is newer than `checkpoint_time_ns`. After an unclean shutdown, this function
    looks at the segments from the cleaner offset (`trusted_from`) to the recovery point (`trusted_to`). It skips
    earlier segments, because compaction may have rewritten them after the checkpoint.
    """
    for segment, following in zip_longest(segments, segments[1:]):
        if trusted_to is not None and (following is None or following.base_offset > trusted_to):
            break
        path = segment.path(LOG_SUFFIX)
        if (
            checkpoint_time_ns
            and segment.base_offset >= trusted_from
            and storage.modified_ns(path) > checkpoint_time_ns
        ):
            _log.warning(
                "Recovering segment %s: the file was modified after this node's last checkpoint or shutdown", path
            )
            return segment.base_offset
    return None


def _existing_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    *,
    open_segments: OpenSegments,
    started_ms: int,
    name_suffix: str = "",
) -> LogSegment:
    """Return a LogSegment for the existing files at `base_offset`."""
    return LogSegment(
        storage,
        directory,
        base_offset,
        open_segments=open_segments,
        size_bytes=storage.size(f"{directory}/{file_name(base_offset, LOG_SUFFIX)}{name_suffix}"),
        started_ms=started_ms,
        name_suffix=name_suffix,
    )


def create_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    config: LogConfig,
    *,
    now_ms: int,
    open_segments: OpenSegments,
    roll_jitter_ms: int = 0,
    tolerate_full_disk: bool = False,
) -> LogSegment:
    """Create the files of a new active segment and return the segment. Existing files with the same names are replaced.

    If this function raises OSError, the new files are removed, so that appends to the previous segment can continue.
    With `tolerate_full_disk`, a full disk is not an error: the log is opened although some files of the segment are
    missing.
    """
    segment = LogSegment(
        storage,
        directory,
        base_offset,
        open_segments=open_segments,
        size_bytes=0,
        started_ms=now_ms,
        is_new=True,
        roll_jitter_ms=roll_jitter_ms,
    )
    try:
        storage.remove(segment.path(LOG_SUFFIX))
        storage.write(segment.path(LOG_SUFFIX), b"")
        if config.preallocate:
            segment.preallocate()
        segment.write_indexes()
    except OSError as error:
        if not tolerate_full_disk or not is_disk_full_error(error):
            with suppress(OSError):
                segment.remove()
            raise
        _log.warning(
            "Log %s: cannot create all files of a new segment, opening the log without the missing files: %s",
            directory,
            error.strerror or error,
        )
    return segment


def _remove_leftovers(storage: Storage, directory: str) -> list[str]:
    """Remove the files of interrupted operations; return the names of the remaining files.

    If a `.cleaned` file exists, the `.swap` files with the same or a larger base offset are removed too. In this case,
    a crash interrupted the renames from `.cleaned` to `.swap`, and all original segments still exist.
    """
    found = storage.listdir(directory)
    first_cleaned = min((offset_of(name) for name in found if name.endswith(CLEANED_SUFFIX)), default=None)
    names = []
    for name in found:
        is_unfinished = first_cleaned is not None and name.endswith(SWAP_SUFFIX) and offset_of(name) >= first_cleaned
        if is_unfinished or name.endswith(_LEFTOVER_SUFFIXES):
            storage.remove(f"{directory}/{name}")
        else:
            names.append(name)
    return names


def _finish_swaps(storage: Storage, directory: str, names: list[str], open_segments: OpenSegments) -> list[int]:
    """If a crash has interrupted the replacement of segments with compacted segments, complete it (KAFKA-6264).

    The files of a compacted segment have the suffix `.swap`. If the `.log.swap` file exists, the compaction has written
    all files of the segment. The compacted segment replaces the segments with base offsets in its offset range. When
    this function or `SegmentedLog.replace_segments` renames the files of a segment, it renames the `.log` file last. A
    `.log` file therefore never has the indexes of another segment.

    A `.log.swap` file may have become corrupt. In this case, the function checks whether the first of the segments to
    replace still exists. If the first one exists, all of them exist, and the function removes the corrupt file.
    Otherwise, the function renames the corrupt file to the final name and returns the base offset of the file. The
    caller can then start recovery at this offset.
    """
    corrupt_offsets = []
    for base_offset in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        swap = _existing_segment(
            storage, directory, base_offset, open_segments=open_segments, started_ms=0, name_suffix=SWAP_SUFFIX
        )
        end_offset = base_offset + 1
        try:
            for _, header in swap.iter_headers(0):
                end_offset = header.next_offset
        except CorruptBatchError as error:
            _log.error("Compacted segment %s is corrupt: %s", swap.path(LOG_SUFFIX), error)
            if file_name(base_offset, LOG_SUFFIX) in names:
                storage.remove(swap.path(LOG_SUFFIX))
                continue
            corrupt_offsets.append(base_offset)
        finally:
            swap.release()
        for old in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX)):
            if base_offset <= old < end_offset:
                _log.info(
                    "Replacing segment %s/%s with compacted segment %s",
                    directory,
                    file_name(old, LOG_SUFFIX),
                    swap.path(LOG_SUFFIX),
                )
                for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                    storage.remove(f"{directory}/{file_name(old, suffix)}")
        rename_swap_files(storage, swap)
    for name in storage.listdir(directory):
        if name.endswith(SWAP_SUFFIX):  # the `.log.swap` file of this index does not exist
            storage.remove(f"{directory}/{name}")
    return corrupt_offsets


def rename_swap_files(storage: Storage, swap: LogSegment) -> None:
    """Rename a `.swap` segment's files to their final names, the `.log` file last. Raises OSError."""
    for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = swap.path(suffix)
        if storage.exists(path):
            storage.rename(path, path.removesuffix(SWAP_SUFFIX))


def _load_epochs(
    storage: Storage, directory: str, names: Sequence[str], segments: Sequence[LogSegment], recovered_from: int | None
) -> tuple[LeaderEpochCache, list[tuple[int, int]]]:
    """Return (the log's leader epoch cache, the entries in the leader epoch checkpoint).

    If the checkpoint is unreadable, the cache is rebuilt from the records before `recovered_from`. Recovery adds the
    leader epochs of the later records.
    """
    epochs = LeaderEpochCache()
    has_records = not all(segment.is_unwritten_from(0) for segment in segments)
    try:
        data = storage.read(f"{directory}/{LEADER_EPOCH_FILE}") if LEADER_EPOCH_FILE in names else b""
        if data or not has_records:
            epochs = LeaderEpochCache(decode_epoch_checkpoint(data))
            return epochs, epochs.entries
        reason = "it is missing or empty, possibly after a power failure"
    except MalformedFileError as error:
        reason = str(error)
    _log.warning(
        "Rebuilding checkpoint file %s/%s from the record batches of the log: %s", directory, LEADER_EPOCH_FILE, reason
    )
    try:
        for segment in segments:
            for _, header in segment.iter_headers(0):
                if recovered_from is not None and header.base_offset >= recovered_from:
                    return epochs, []
                epochs.assign(header.partition_leader_epoch, header.base_offset)
    except CorruptBatchError as error:
        _log.warning("Log %s: some leader epochs are lost because of a corrupt batch: %s", directory, error)
    return epochs, []


def read_topic_id(storage: Storage, directory: str) -> bytes | None:
    """Return the topic id from `partition.metadata`, or None if the file is missing or unreadable."""
    try:
        return decode_partition_metadata(storage.read(f"{directory}/{PARTITION_METADATA_FILE}"))
    except FileNotFoundError:
        return None
    except MalformedFileError as error:
        _log.warning(
            "File %s/%s is unreadable, using the topic id from the cluster metadata: %s",
            directory,
            PARTITION_METADATA_FILE,
            error,
        )
        return None


def _end_offset_of(segment: LogSegment) -> int:
    """Return the offset after the segment's last record. Raises CorruptBatchError if a batch is corrupt."""
    end_offset = segment.base_offset
    if segment.size_bytes:
        index = segment.index
        for _, header in segment.iter_headers(index.positions[-1] if len(index) else 0):
            end_offset = header.next_offset
    return end_offset
