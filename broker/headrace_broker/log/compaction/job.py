"""The messages between the broker and its cleaner process: jobs and reports, encoded as lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LastRecord:
    """Identifies the last batch of an active producer.

    Compaction must retain this batch, because it contains the producer's last sequence and epoch. `last_offset` is the
    last offset of the producer's last data batch. It is -1 if the producer's only batch with `epoch` is a transaction
    marker.
    """

    producer_id: int
    last_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """A log to clean, and the state of this log at `now_ms`.

    `segments` lists (base offset, size in bytes) of each inactive segment before `end_offset`, the oldest first.
    Records from `first_dirty_offset` on have not been cleaned yet. `is_overdue` means that a record has been dirty for
    longer than max.compaction.lag.ms.
    """

    directory: str
    segments: tuple[tuple[int, int], ...]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    high_watermark: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    offset_map_bytes_max: int
    io_bytes_per_second: float
    is_overdue: bool = False
    last_records: tuple[LastRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment with synced `.cleaned` files. It replaces the segments whose base offsets are in `replaced`."""

    base_offset: int
    size_bytes: int
    replaced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CleaningDone:
    """The cleaning succeeded: every record before `end_offset` is clean."""

    end_offset: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keys: int


@dataclass(frozen=True, slots=True)
class CleaningFailed:
    """The cleaning failed. `is_lasting` means that a retry would also fail."""

    reason: str
    is_lasting: bool


CleanerReport = CleanedSegment | CleaningDone | CleaningFailed
_REPORTS: dict[str, type[Any]] = {kind.__name__: kind for kind in (CleanedSegment, CleaningDone, CleaningFailed)}


def encode_job(job: CleaningJob) -> bytes:
    """Return the cleaning job as one line of JSON."""
    return json.dumps(asdict(job)).encode() + b"\n"


def decode_job(line: bytes) -> CleaningJob:
    """Decode a cleaning job from `line`, which `encode_job` returned."""
    fields = json.loads(line)
    fields["segments"] = tuple(tuple(pair) for pair in fields["segments"])
    fields["last_records"] = tuple(LastRecord(**record) for record in fields["last_records"])
    return CleaningJob(**fields)


def encode_report(report: CleanerReport) -> bytes:
    """Return the cleaner's report as one line of JSON."""
    return json.dumps({"kind": type(report).__name__, **asdict(report)}).encode() + b"\n"


def decode_report(line: bytes) -> CleanerReport:
    """Decode a cleaner's report from `line`, which `encode_report` returned."""
    fields = json.loads(line)
    kind = _REPORTS[fields.pop("kind")]
    if kind is CleanedSegment:
        fields["replaced"] = tuple(fields["replaced"])
    report: CleanerReport = kind(**fields)
    return report
