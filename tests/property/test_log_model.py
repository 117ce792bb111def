"""Model-based test of PartitionLog: appends, reads, rolls, retention, truncation, and clean and unclean restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression
from headrace_broker.records.reader import read_columns
from support.examples import examples

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"
PRODUCER_ID = 5


class LogMachine(RuleBasedStateMachine):
    """A log and its model.

    `model` maps each offset to (value, timestamp, leader epoch). `start` is the expected log start
    offset.
    """

    @initialize(segment_bytes=st.integers(600, 1800), interval=st.integers(0, 400))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval, retention_bytes=3000)
        self.storage = MemoryStorage()
        self.model: list[tuple[bytes, int, int]] = []
        self.start = 0
        self.epoch = 0
        self.sequence = 0
        self.last_sent: tuple[bytearray, int] | None = None
        self.log = self.open(was_closed_cleanly=False)

    def open(self, *, was_closed_cleanly: bool) -> PartitionLog:
        log = PartitionLog.open(
            self.storage,
            DIRECTORY,
            "t",
            0,
            self.config,
            NOW,
            was_closed_cleanly=was_closed_cleanly,
            log_start_offset=self.start,
        )
        log.advance_high_watermark(log.log_end_offset)
        return log

    @rule(
        values=st.lists(st.binary(max_size=60), min_size=1, max_size=6),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4]),
        spread=st.integers(-50, 50),
        idempotent=st.booleans(),
    )
    def append(self, values: list[bytes], codec: int, spread: int, idempotent: bool) -> None:
        base = len(self.model)
        timestamps = [NOW + base * 3 + spread * index for index in range(len(values))]
        columns = RecordColumns(values=list(values), timestamps=timestamps)
        producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": self.sequence}
        batch = build_batch(columns, compression=codec, **(producer if idempotent else {}))
        sent = bytearray(batch)
        info = self.log.append_as_leader(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert (info.base_offset, info.is_duplicate) == (base, False)
        self.log.advance_high_watermark(self.log.log_end_offset)
        if idempotent:
            self.sequence += len(values)
            self.last_sent = (sent, base)
        rows = zip(values, timestamps, strict=True)
        self.model += [(value, timestamp, self.epoch) for value, timestamp in rows]

    @precondition(lambda self: self.last_sent is not None and self.last_sent[1] >= self.start)
    @rule()
    def retry_last_idempotent_batch(self) -> None:
        sent, base = self.last_sent
        info = self.log.append_as_leader(bytearray(sent), leader_epoch=self.epoch, now_ms=NOW)
        assert (info.base_offset, info.is_duplicate) == (base, True)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule(fraction=st.floats(0, 1), max_bytes=st.integers(1, 2000), bound=st.floats(0, 1))
    def read(self, fraction: float, max_bytes: int, bound: float) -> None:
        end = len(self.model)
        offset = self.start + int(fraction * (end - self.start))
        upper_bound = self.start + int(bound * (end - self.start))
        read = self.log.read(offset, max_bytes, upper_bound_offset=upper_bound)
        columns = read_columns(b"".join(read.buffers), offset)
        got = list(zip(columns.values, columns.timestamp_list(), strict=True))
        assert got == [row[:2] for row in self.model[offset : offset + len(got)]]
        assert list(columns.offsets or ()) == list(range(offset, offset + len(got)))
        if offset < upper_bound:
            assert got or self.base_offset_of_batch_with(upper_bound) <= offset

    def base_offset_of_batch_with(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`."""
        for segment in self.log.segments:
            for _, header in segment.iter_headers(0):
                if header.last_offset >= offset:
                    return header.base_offset
        return len(self.model)

    @rule(fraction=st.floats(0, 1), shift=st.integers(-60, 60))
    def find_by_timestamp(self, fraction: float, shift: int) -> None:
        target = NOW + int(fraction * len(self.model)) * 3 + shift
        rows = enumerate(self.model[self.start :], self.start)
        expected = next(((row[1], offset, row[2]) for offset, row in rows if row[1] >= target), None)
        assert self.log.offset_for_timestamp(target) == expected

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def apply_retention(self) -> None:
        self.log.apply_retention(NOW)
        self.start = self.log.log_start_offset
        assert self.log.size_bytes <= 3000 + max(self.config.segment_bytes, 600)

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        self.start = max(self.start, int(fraction * len(self.model)))
        assert self.log.delete_records_before(self.start) == self.start

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction: float) -> None:
        offset = self.start + int(fraction * (len(self.model) - self.start))
        end = max(self.base_offset_of_batch_with(offset), self.start)
        self.log.truncate_to(offset, NOW)
        assert self.log.log_end_offset == end
        del self.model[end:]
        self.last_sent = None
        entry = self.log.producers.producers.get(PRODUCER_ID)
        self.sequence = entry.last_sequence + 1 if entry and entry.batches else 0

    @rule()
    def restart_cleanly(self) -> None:
        self.log.close(clean=True, now_ms=NOW)
        self.log = self.open(was_closed_cleanly=True)

    @rule(flushed=st.booleans())
    def restart_uncleanly(self, flushed: bool) -> None:
        recovery_point = self.log.recovery_point if flushed else 0
        self.log.release()
        self.log = PartitionLog.open(
            self.storage,
            DIRECTORY,
            "t",
            0,
            self.config,
            NOW,
            recovery_point=recovery_point,
            log_start_offset=self.start,
        )
        self.log.advance_high_watermark(self.log.log_end_offset)

    @rule()
    def flush(self) -> None:
        self.log.flush(NOW)

    @invariant()
    def offsets_match_model(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, len(self.model))

    @invariant()
    def all_records_are_readable(self) -> None:
        offset = self.start
        while offset < len(self.model):
            columns = read_columns(b"".join(self.log.read(offset, 700).buffers), offset)
            assert columns.values == [row[0] for row in self.model[offset : offset + len(columns)]]
            assert len(columns) > 0
            offset += len(columns)
        if self.model and self.start < len(self.model):
            epochs = [row[2] for row in self.model]
            for offset in (self.start, len(self.model) - 1):
                assert self.log.epoch_for_offset(offset) == epochs[offset]

    @invariant()
    def offsets_outside_the_log_are_out_of_range(self) -> None:
        for offset in (self.start - 1, len(self.model) + 1):
            with pytest.raises(ApiError) as raised:
                self.log.read(offset, 100)
            assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


LogMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestLog = LogMachine.TestCase


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_recovery_truncates_an_incomplete_last_batch_and_keeps_all_earlier_batches(codec: Compression) -> None:
    """Rule R15 in docs/broker.md: recovery keeps all batches before the first invalid batch."""
    storage = MemoryStorage()
    log = PartitionLog.open(storage, DIRECTORY, "t", 0, LogConfig(segment_bytes=600), NOW)
    values = [b"value %d" % number for number in range(20)]
    for number, value in enumerate(values):
        producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": number}
        batch = build_batch(RecordColumns(values=[value], timestamps=NOW + number), compression=codec, **producer)
        log.append_as_leader(batch, leader_epoch=number // 5, now_ms=NOW)
    active = log.segments[-1]
    last_batch = active.locate(19)
    files = dict(storage._files)
    content = bytes(files[active.path(".log")])
    for size in range(last_batch, len(content) + 1):
        for tail in (b"", bytes(40)):
            # If only the last byte is missing, a tail of zeros restores it, because this byte is zero.
            is_complete = (content[:size] + tail).startswith(content)
            storage._files = {path: bytearray(data) for path, data in files.items()}
            storage._files[active.path(".log")] = bytearray(content[:size] + tail)
            reopened = PartitionLog.open(storage, DIRECTORY, "t", 0, LogConfig(segment_bytes=600), NOW)
            expected = 20 if is_complete else 19
            assert reopened.log_end_offset == expected
            assert storage.size(active.path(".log")) == (len(content) if expected == 20 else last_batch)
            assert reopened.epoch_for_offset(expected - 1) == 3
            reopened.advance_high_watermark(expected)
            found: list[bytes | None] = []
            while len(found) < expected:
                found += read_columns(b"".join(reopened.read(len(found), 1 << 20).buffers), len(found)).values
            assert found == values[:expected]
            producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": expected}
            next_batch = build_batch(RecordColumns(values=[b"n"], timestamps=NOW + 20), **producer)
            assert reopened.append_as_leader(next_batch, leader_epoch=3, now_ms=NOW).base_offset == expected
