"""Tests that Apache Kafka's DumpLogSegments reads the files that headrace's log cleaner writes."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import CleanedSegment, CleaningDone, CleaningJob, LastRecord
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import DiskStorage
from headrace_broker.log.transaction_index import AbortedTxn, encode_transaction_index
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from support import apache

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

NOW = 1_700_000_000_000


def append(log: PartitionLog, rng: random.Random, producer_id: int, sequence: int, **options: bool) -> None:
    count = rng.randrange(1, 8)
    columns = RecordColumns(
        keys=[b"key-%d" % rng.randrange(40) for _ in range(count)],
        values=[None if rng.random() < 0.2 else rng.randbytes(rng.randrange(60)).hex().encode() for _ in range(count)],
        timestamps=[NOW + rng.randrange(-500, 500) for _ in range(count)],
        headers=[[("h", b"1")] if rng.random() < 0.3 else [] for _ in range(count)],
    )
    producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence} if producer_id >= 0 else {}
    batch = build_batch(columns, compression=rng.choice(list(Compression)), **producer, **options)
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)


def create_log(directory: Path) -> PartitionLog:
    """Create a log with records, tombstones, producers and transactions in several segments."""
    rng = random.Random(7)
    storage = DiskStorage()
    config = LogConfig(cleanup_compact=True, segment_bytes=20_000, index_interval_bytes=100)
    log = PartitionLog.open(storage, str(directory), "t", 0, config, NOW)
    aborted: dict[str, list[AbortedTxn]] = {}
    for number in range(600):
        append(log, rng, -1 if number % 3 else number, 0)
        if number % 25 == 0:
            first = log.log_end_offset
            append(log, rng, 100_000 + number, 0, is_transactional=True)
            kind = ControlType.ABORT if number % 50 else ControlType.COMMIT
            marker = build_control_batch(
                kind, end_transaction_value(0), timestamp=NOW, producer_id=100_000 + number, producer_epoch=0
            )
            info = log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
            if kind == ControlType.ABORT:
                path = log.segments[-1].path(".txnindex")
                entry = AbortedTxn(100_000 + number, first, info.base_offset, log.last_stable_offset)
                aborted.setdefault(path, []).append(entry)
    for path, entries in aborted.items():
        storage.write(path, encode_transaction_index(entries))
    log.roll(NOW)
    log.advance_high_watermark(log.log_end_offset)
    return log


def compact(log: PartitionLog, now_ms: int) -> CleaningDone:
    job = CleaningJob(
        directory=log.directory,
        segments=tuple((segment.base_offset, segment.size_bytes) for segment in log.segments[:-1]),
        first_dirty_offset=0,
        end_offset=log.segments[-1].base_offset,
        now_ms=now_ms,
        high_watermark=log.high_watermark,
        delete_retention_ms=1000,
        segment_bytes=20_000,
        segment_index_bytes=1 << 20,
        index_interval_bytes=100,
        offset_map_bytes_max=1 << 24,
        io_bytes_per_second=1e300,
        last_records=tuple(
            LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producers.producers.items()
        ),
    )
    *segments, done = clean(DiskStorage(), job, lambda size_bytes: None)
    assert isinstance(done, CleaningDone), done
    for segment in segments:
        assert isinstance(segment, CleanedSegment)
        log.replace_segments(segment, now_ms)
    return done


def dump(*arguments: str) -> str:
    """Return the output of Kafka's DumpLogSegments, and check that headrace's dump tool prints the same output.

    Only warnings about the offset gaps that compaction leaves are allowed.
    """
    done = apache.run_tool("org.apache.kafka.tools.DumpLogSegments", *arguments, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stderr.splitlines():
        assert re.fullmatch(r"Non-consecutive offsets in .*|  -?\d+ is followed by \d+", line), line
    command = [sys.executable, "-m", "headrace_broker.tools.dump_log", *arguments]
    ours = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ours.stdout == done.stdout
    assert sorted(ours.stderr.splitlines()) == sorted(done.stderr.splitlines())
    return done.stdout


def test_kafka_dump_log_accepts_compacted_segments(tmp_path: Path) -> None:
    log = create_log(tmp_path / "t-0")
    done = compact(log, NOW)
    assert done.records_after < done.records_before / 3
    first = dump_all(log)
    assert f"deleteHorizonMs: OptionalLong[{NOW + 1000}]" in first
    assert re.search(r"^baseOffset: \d+ lastOffset: \d+ count: 0 ", first, re.M)
    assert "isvalid: false" not in first
    compact(log, NOW + 1000)
    second = dump_all(log)
    assert "isvalid: false" not in second
    assert len(second) < len(first)
    assert "valueSize: -1" in first
    assert "valueSize: -1" not in second


def dump_all(log: PartitionLog) -> str:
    """Return the dump of the compacted segments.

    The dump tool also checks the segments' indexes against the records.
    """
    segments = log.segments[:-1]
    assert all(segment.size_bytes for segment in segments)
    paths = [segment.path(suffix) for segment in segments for suffix in (".index", ".timeindex", ".txnindex")]
    indexes = dump("--files", ",".join(path for path in paths if Path(path).exists()))
    assert len(re.findall(r"^offset: \d+ position: \d+", indexes, re.M)) > len(segments)
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", indexes, re.M)) >= len(segments)
    return dump("--files", ",".join(segment.path(".log") for segment in segments), "--print-data-log")
