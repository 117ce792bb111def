"""What the broker asks of a cleaner and what it is told: plain values, which travel as lines of JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LastRecord:
    """Where the log has the last thing it knows of a producer that is still active.

    `last_offset` is the last offset of its last data batch, -1 when it has left nothing but a marker of `epoch`.
    """

    producer_id: int
    last_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One log to clean, as it is at `now_ms`.

    `segments` are (base offset, size in bytes) of the closed segments before `end_offset`, oldest first. Records from
    `first_dirty_offset` on have not been compacted yet. `is_overdue`: max.compaction.lag.ms is over.
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
    key_map_bytes_max: int
    io_bytes_per_second: float
    is_overdue: bool = False
    last_records: tuple[LastRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment that is on disk with `.cleaned` names; it replaces those with the base offsets `replaced`."""

    base_offset: int
    size_bytes: int
    replaced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CleaningDone:
    """Every record before `end_offset` has been compacted."""

    end_offset: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keys: int


@dataclass(frozen=True, slots=True)
class CleaningFailed:
    """The log could not be cleaned; `is_lasting` = it will not be the next time either."""

    reason: str
    is_lasting: bool


Report = CleanedSegment | CleaningDone | CleaningFailed
_REPORTS: dict[str, type[Any]] = {kind.__name__: kind for kind in (CleanedSegment, CleaningDone, CleaningFailed)}


def encode_job(job: CleaningJob) -> bytes:
    """Return the job as one line."""
    return json.dumps(asdict(job)).encode() + b"\n"


def decode_job(line: bytes) -> CleaningJob:
    """Return the job in a line that `encode_job` made."""
    fields = json.loads(line)
    fields["segments"] = tuple(tuple(pair) for pair in fields["segments"])
    fields["last_records"] = tuple(LastRecord(**record) for record in fields["last_records"])
    return CleaningJob(**fields)


def encode_report(report: Report) -> bytes:
    """Return the report as one line."""
    return json.dumps({"kind": type(report).__name__, **asdict(report)}).encode() + b"\n"


def decode_report(line: bytes) -> Report:
    """Return the report in a line that `encode_report` made."""
    fields = json.loads(line)
    kind = _REPORTS[fields.pop("kind")]
    if kind is CleanedSegment:
        fields["replaced"] = tuple(fields["replaced"])
    report: Report = kind(**fields)
    return report
