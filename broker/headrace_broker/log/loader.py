"""Open a partition's directory: finish what a stop interrupted, trust it after a clean shutdown, else recover it."""

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
from headrace_broker.log.producer_state import ProducerState
from headrace_broker.log.recovery import drop_after, recover
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
from headrace_broker.log.storage import Storage, is_lack_of_room
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)
_LEFT_OVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


@dataclass(slots=True)
class LoadedLog:
    """What opening a directory found."""

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    is_overtold: bool
    """Whether the recovery point that was told lies behind it: a checkpoint tells of what is not there any more."""
    epochs: LeaderEpochCache
    epochs_changed: bool
    is_unsynced: bool
    """Whether a power failure may take back the epochs that were read, and what was cut: a process was killed."""
    producers: ProducerState
    topic_id: bytes | None
    is_damaged: bool


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
    vouched_ns: int = 0,
    may_have_gaps: bool = True,
    is_only_copy: bool = True,
) -> LoadedLog:
    """Return the log in `directory`, made if missing. Raises OSError.

    Where others have the records as well, segments that were written after `vouched_ns` are checked, though their
    records were safe on disk then: somebody else wrote, or compaction right before a crash.
    """
    storage.makedirs(directory)
    told = recovery_point
    names = _without_left_overs(storage, directory)
    is_unsynced = bool(names) and not was_closed_cleanly
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        damaged = _finish_swaps(storage, directory, names, open_segments)
        storage.sync_directory(directory)  # a power failure must bring back none of several that were replaced
        names = storage.listdir(directory)
        if damaged and not is_only_copy:
            recovery_point = min(recovery_point, *damaged)
    segments = [
        _segment_of(storage, directory, base_offset, open_segments=open_segments, started_ms=now_ms)
        for base_offset in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX))
    ]
    orphans = _find_orphans(directory, names)
    lost = min(map(offset_of, orphans), default=None)
    if lost is not None:
        was_closed_cleanly = False
        recovery_point = min(recovery_point, lost)
        if not is_only_copy:
            drop_after(segments, sum(segment.base_offset < lost for segment in segments))
        for name in orphans:  # not before: they are all that tells of it, if a crash comes between
            storage.remove(f"{directory}/{name}")
        storage.sync_directory(directory)  # back after a power failure they would tell of records that are there again
    trusted_from, trusted_to = (0, None) if was_closed_cleanly else (cleaner_offset, recovery_point)
    changed = None if is_only_copy else _find_changed(segments, storage, vouched_ns, trusted_from, trusted_to)
    if changed is not None:
        was_closed_cleanly = False
        recovery_point = min(recovery_point, changed)
    checked_to = None if was_closed_cleanly else recovery_point
    epochs, saved_epochs = _load_epochs(storage, directory, names, segments, checked_to)
    begin = partial(
        new_segment,
        storage,
        directory,
        config=config,
        now_ms=now_ms,
        open_segments=open_segments,
        may_lack_files=bool(names),
    )
    if not segments:
        segments = [begin(log_start_offset)]
    producers: ProducerState | None = None
    is_damaged = lost is not None
    if not names:  # a new one: nothing to check
        end_offset = recovery_point = log_start_offset
        producers = ProducerState()
        producers.clear(end_offset)
    elif was_closed_cleanly:
        try:
            end_offset = recovery_point = _end_of(segments[-1])
            if end_offset < told:  # what is appended behind a batch of lower offsets, recovery would cut away
                raise CorruptBatchError(segments[-1].size_bytes, f"it is at offset {end_offset} instead of {told}")
            producers = load_producers(storage, directory, segments, end_offset)
        except CorruptBatchError as error:
            _log.warning("Checking %s, which was closed cleanly: %s", directory, error)
            is_damaged = True
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
            "%s ends at offset %d, before its log start offset %d: starting there", directory, end_offset, start_offset
        )
        for segment in segments:
            segment.mark_deleted()
        segments = [begin(start_offset)]
        end_offset = recovery_point = start_offset
        producers.clear(end_offset)
    if config.preallocate:
        segments[-1].preallocate()
    is_emptied = end_offset == start_offset and not was_closed_cleanly
    epochs.truncate_from_end(0 if is_emptied else end_offset)  # which epoch the lost records were of, nobody knows
    epochs.truncate_from_start(start_offset)
    return LoadedLog(
        segments=segments,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        recovery_point=recovery_point,
        is_overtold=recovery_point < told,
        epochs=epochs,
        epochs_changed=epochs.entries != saved_epochs,
        is_unsynced=is_unsynced,
        producers=producers,
        topic_id=read_topic_id(storage, directory),
        is_damaged=is_damaged,
    )


def _find_orphans(directory: str, names: Sequence[str]) -> list[str]:
    """Return the indexes of records that somebody has removed: indexes always go first.

    A replica must not have a hole that nobody knows of: it ends there and fetches the rest again.
    """
    found = {offset_of(name) for name in names if name.endswith(LOG_SUFFIX)}
    orphans = [name for name in names if name.endswith(INDEX_SUFFIXES) and offset_of(name) not in found]
    for name in orphans:
        _log.error("%s/%s has no %s beside it: those records are lost here", directory, name, LOG_SUFFIX)
    return orphans


def _find_changed(
    segments: Sequence[LogSegment], storage: Storage, vouched_ns: int, trusted_from: int, trusted_to: int | None
) -> int | None:
    """Return where the first segment begins that was written since its records were safe on disk.

    Of a log that was not closed those are trusted that end before the recovery point, and were not compacted: that may
    have been later.
    """
    for segment, following in zip_longest(segments, segments[1:]):
        if trusted_to is not None and (following is None or following.base_offset > trusted_to):
            break
        path = segment.path(LOG_SUFFIX)
        if vouched_ns and segment.base_offset >= trusted_from and storage.modified_ns(path) > vouched_ns:
            _log.warning("Checking %s: it was written to after this node last noted what is safe", path)
            return segment.base_offset
    return None


def _segment_of(
    storage: Storage,
    directory: str,
    base_offset: int,
    *,
    open_segments: OpenSegments,
    started_ms: int,
    name_suffix: str = "",
) -> LogSegment:
    """Return the segment whose files are there."""
    return LogSegment(
        storage,
        directory,
        base_offset,
        open_segments=open_segments,
        size_bytes=storage.size(f"{directory}/{file_name(base_offset, LOG_SUFFIX)}{name_suffix}"),
        started_ms=started_ms,
        name_suffix=name_suffix,
    )


def new_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    config: LogConfig,
    *,
    now_ms: int,
    open_segments: OpenSegments,
    roll_jitter_ms: int = 0,
    may_lack_files: bool = False,
) -> LogSegment:
    """Return a new active segment with its three files on disk, whatever stood there before removed.

    Raises OSError, and leaves none of them then: records may go on being appended to the segment before.
    `may_lack_files`: on a full disk it does without them, so that a log can be opened.
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
        if not may_lack_files or not is_lack_of_room(error):
            with suppress(OSError):
                segment.remove()
            raise
        _log.warning("Beginning %s without a file: %s", directory, error.strerror or error)
    return segment


def _without_left_overs(storage: Storage, directory: str) -> list[str]:
    """Remove the files of interrupted work; return the names that stay.

    Where a `.cleaned` file is left, the `.swap` files from its offset on are as unfinished as it is: what they were
    made from is all there still.
    """
    found = storage.listdir(directory)
    first_cleaned = min((offset_of(name) for name in found if name.endswith(CLEANED_SUFFIX)), default=None)
    names = []
    for name in found:
        is_unfinished = first_cleaned is not None and name.endswith(SWAP_SUFFIX) and offset_of(name) >= first_cleaned
        if is_unfinished or name.endswith(_LEFT_OVER_SUFFIXES):
            storage.remove(f"{directory}/{name}")
        else:
            names.append(name)
    return names


def _finish_swaps(storage: Storage, directory: str, names: list[str], open_segments: OpenSegments) -> list[int]:
    """Put compacted segments in the place of those they were made from, where a stop came between (KAFKA-6264).

    A `.swap` of records is complete, and so are its indexes; the segments it replaces begin within its offsets. In
    every step here and in `SegmentedLog.replace_segments` the records come last: while a segment's `.log` is there, so
    are the indexes that belong to it or none. One that is damaged gives way to those that it was made from if the first
    is still there, and so all are; else it is put in place, and its base offset is among those returned.
    """
    damaged = []
    for base_offset in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        swap = _segment_of(
            storage, directory, base_offset, open_segments=open_segments, started_ms=0, name_suffix=SWAP_SUFFIX
        )
        end_offset = base_offset + 1
        try:
            for _, header in swap.iter_headers(0):
                end_offset = header.next_offset
        except CorruptBatchError as error:
            _log.error("%s is damaged: %s", swap.path(LOG_SUFFIX), error)
            if file_name(base_offset, LOG_SUFFIX) in names:
                storage.remove(swap.path(LOG_SUFFIX))
                continue
            damaged.append(base_offset)
        finally:
            swap.release()
        for old in sorted(offset_of(name) for name in names if name.endswith(LOG_SUFFIX)):
            if base_offset <= old < end_offset:
                _log.info("Replacing %s/%s by the compacted one", directory, file_name(old, LOG_SUFFIX))
                for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                    storage.remove(f"{directory}/{file_name(old, suffix)}")
        put_in_place(storage, swap)
    for name in storage.listdir(directory):
        if name.endswith(SWAP_SUFFIX):  # indexes without records
            storage.remove(f"{directory}/{name}")
    return damaged


def put_in_place(storage: Storage, swap: LogSegment) -> None:
    """Rename a `.swap` segment's files to the names they are to have, the records last. Raises OSError."""
    for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = swap.path(suffix)
        if storage.exists(path):
            storage.rename(path, path.removesuffix(SWAP_SUFFIX))


def _load_epochs(
    storage: Storage, directory: str, names: Sequence[str], segments: Sequence[LogSegment], checked_to: int | None
) -> tuple[LeaderEpochCache, list[tuple[int, int]]]:
    """(the epochs of the log, those that the file has). `checked_to`: recovery looks at the records from there on."""
    epochs = LeaderEpochCache()
    has_records = not all(segment.is_unwritten_from(0) for segment in segments)
    try:
        data = storage.read(f"{directory}/{LEADER_EPOCH_FILE}") if LEADER_EPOCH_FILE in names else b""
        if data or not has_records:
            epochs = LeaderEpochCache(decode_epoch_checkpoint(data))
            return epochs, epochs.entries
        reason = "a power failure may have taken it"
    except MalformedFileError as error:
        reason = str(error)
    _log.warning("Rebuilding %s/%s from the records: %s", directory, LEADER_EPOCH_FILE, reason)
    try:
        for segment in segments:
            for _, header in segment.iter_headers(0):
                if checked_to is not None and header.base_offset >= checked_to:
                    return epochs, []
                epochs.assign(header.partition_leader_epoch, header.base_offset)
    except CorruptBatchError as error:
        _log.warning("%s: not all of its leader epochs are known any more: %s", directory, error)
    return epochs, []


def read_topic_id(storage: Storage, directory: str) -> bytes | None:
    """Return the id of the topic that a partition's directory belongs to, None where it does not say so."""
    try:
        return decode_partition_metadata(storage.read(f"{directory}/{PARTITION_METADATA_FILE}"))
    except FileNotFoundError:
        return None
    except MalformedFileError as error:
        _log.warning(
            "%s/%s is not readable, the topic id is taken from the metadata: %s",
            directory,
            PARTITION_METADATA_FILE,
            error,
        )
        return None


def _end_of(segment: LogSegment) -> int:
    """Return the offset after the last record of a segment that is in order."""
    end_offset = segment.base_offset
    if segment.size_bytes:
        index = segment.index
        for _, header in segment.iter_headers(index.positions[-1] if len(index) else 0):
            end_offset = header.next_offset
    return end_offset
