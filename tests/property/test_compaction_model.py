"""Model-based test of log compaction. The model contains every record that was written.

The test appends batches with all codecs to a log with a random segment size. Every record has a key,
and some records are tombstones. Some batches have a producer id. Some batches belong to transactions.
In random order, the test also compacts the log, lets delete horizons pass, and restarts the log.
Some compactions use an offset map that is too small for all keys. After a restart, the log rebuilds
its indexes and producer state.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_broker.log.compaction.cleanable import find_dirty_range
from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import CleanedSegment, CleaningDone, CleaningJob, LastRecord
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.log.transaction_index import (
    AbortedTxn,
    decode_transaction_index,
    encode_transaction_index,
)
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.records.batch import BatchHeader
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.records.compression import Compression
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from headrace_broker.records.reader import read_batch
from support.examples import examples

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"
RETENTION_MS = 1000
KEYS = [b"a", b"b", b"c", b"", b"d" * 33, b"d" * 40]


@dataclass
class Written:
    """A record that was written. `is_aborted` is None while the record's transaction is open."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    headers: RecordHeaders
    producer_id: int
    is_aborted: bool | None = False
    first_cleaned_ms: int | None = None


class CompactionMachine(RuleBasedStateMachine):
    """A compacted log and its model. `written` maps each offset to the record that was written there."""

    @initialize(segment_bytes=st.integers(500, 2500), interval=st.integers(0, 400), append_time=st.booleans())
    def begin(self, segment_bytes: int, interval: int, append_time: bool) -> None:
        self.config = LogConfig(
            cleanup_compact=True,
            cleanup_delete=False,
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
            is_log_append_time=append_time,
        )
        self.storage = MemoryStorage()
        self.now = NOW
        self.written: dict[int, Written] = {}
        self.sequences: dict[int, int] = {}
        self.last_sent: dict[int, tuple[bytearray, int]] = {}
        self.open: dict[int, int] = {}  # producer id -> first offset of the open transaction
        self.transactions: list[tuple[int, int, int]] = []  # (producer id, first offset, marker offset)
        self.cleaned_to = 0
        self.log = self.load(was_closed_cleanly=False)

    def load(self, *, was_closed_cleanly: bool) -> PartitionLog:
        """Open the log as a replica of a partition with several replicas.

        If `was_closed_cleanly` is false, the log is recovered as after a crash. Recovery treats a gap
        between segments as lost records. The test therefore fails if compaction leaves a gap.
        """
        log = PartitionLog.open(
            self.storage,
            DIRECTORY,
            "t",
            0,
            self.config,
            self.now,
            was_closed_cleanly=was_closed_cleanly,
            may_have_gaps=False,
        )
        log.advance_high_watermark(log.log_end_offset)
        return log

    # Writing

    @rule(
        records=st.lists(
            st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=80)), st.integers(-300, 300)),
            min_size=1,
            max_size=6,
        ),
        codec=st.sampled_from(list(Compression)),
        producer_id=st.sampled_from([-1, -1, 1, 2]),
        has_headers=st.booleans(),
    )
    def append(
        self, records: list[tuple[bytes, bytes | None, int]], codec: int, producer_id: int, has_headers: bool
    ) -> None:
        self._append(records, codec, producer_id, has_headers, is_transactional=False)

    @rule(
        records=st.lists(
            st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=20)), st.just(0)),
            min_size=1,
            max_size=3,
        ),
        codec=st.sampled_from([Compression.NONE, Compression.ZSTD]),
        producer_id=st.sampled_from([11, 12]),
    )
    def append_in_transaction(
        self, records: list[tuple[bytes, bytes | None, int]], codec: int, producer_id: int
    ) -> None:
        first = self._append(records, codec, producer_id, False, is_transactional=True)
        self.open.setdefault(producer_id, first)

    def _append(
        self,
        records: list[tuple[bytes, bytes | None, int]],
        codec: int,
        producer_id: int,
        has_headers: bool,
        *,
        is_transactional: bool,
    ) -> int:
        timestamps = [self.now + shift for _, _, shift in records]
        headers: list[RecordHeaders] = [[("h", b"%d" % number)] for number in range(len(records))]
        columns = RecordColumns(
            values=[value for _, value, _ in records],
            keys=[key for key, _, _ in records],
            timestamps=timestamps,
            headers=headers if has_headers else None,
        )
        producer = {}
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            self.sequences[producer_id] = sequence + len(records)
        batch = build_batch(columns, compression=codec, is_transactional=is_transactional, **producer)
        sent = bytearray(batch)
        info = self.log.append_as_leader(batch, leader_epoch=0, now_ms=self.now)
        self.log.advance_high_watermark(self.log.log_end_offset)
        if producer_id >= 0:
            self.last_sent[producer_id] = (sent, info.base_offset)
        for index, (key, value, _) in enumerate(records):
            offset = info.base_offset + index
            timestamp = self.now if self.config.is_log_append_time else timestamps[index]
            own_headers = headers[index] if has_headers else []
            self.written[offset] = Written(offset, key, value, timestamp, own_headers, producer_id)
            if is_transactional:
                self.written[offset].is_aborted = None
        return info.base_offset

    @precondition(lambda self: self.open)
    @rule(data=st.data(), aborts=st.booleans())
    def end_transaction(self, data: st.DataObject, aborts: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open)))
        first = self.open.pop(producer_id)
        kind = ControlType.ABORT if aborts else ControlType.COMMIT
        marker = build_control_batch(
            kind, end_transaction_value(0), timestamp=self.now, producer_id=producer_id, producer_epoch=0
        )
        info = self.log.append_as_leader(marker, leader_epoch=0, now_ms=self.now, origin=AppendOrigin.COORDINATOR)
        self.log.advance_high_watermark(self.log.log_end_offset)
        for record in self.written.values():
            if record.is_aborted is None and record.producer_id == producer_id:
                record.is_aborted = aborts
        self.transactions.append((producer_id, first, info.base_offset))
        if aborts:
            path = self.log.segments[-1].path(".txnindex")
            entries = decode_transaction_index(self.storage.read(path)) if self.storage.exists(path) else []
            stable = self.log.last_stable_offset
            entries.append(AbortedTxn(producer_id, first, info.base_offset, stable))
            self.storage.write(path, encode_transaction_index(entries))

    @rule(elapsed=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]))
    def wait(self, elapsed: int) -> None:
        self.now += elapsed

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    # Compacting

    @rule(offset_map_bytes_max=st.sampled_from([1, 400, 1 << 20]))
    def compact(self, offset_map_bytes_max: int) -> None:
        log = self.log
        dirty = find_dirty_range(
            log.segments,
            self.config,
            cleaner_offset=log.cleaner_offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            now_ms=self.now,
        )
        if not dirty.is_due(self.config):
            return
        assert dirty.end_offset <= min([log.log_end_offset, *self.open.values()])
        reports = list(
            clean(
                self.storage,
                self.job(dirty.first_dirty_offset, dirty.end_offset, offset_map_bytes_max),
                lambda size: None,
            )
        )
        done = reports.pop()
        assert isinstance(done, CleaningDone), done
        for report in reports:
            assert isinstance(report, CleanedSegment)
            log.replace_segments(report, self.now)
        assert dirty.first_dirty_offset < done.end_offset <= dirty.end_offset
        assert done.end_offset == dirty.end_offset or offset_map_bytes_max < 1 << 20
        log.cleaner_offset = self.cleaned_to = done.end_offset
        self.check_compacted()

    def job(self, first_dirty_offset: int, end_offset: int, offset_map_bytes_max: int) -> CleaningJob:
        log = self.log
        return CleaningJob(
            directory=DIRECTORY,
            segments=tuple(
                (segment.base_offset, segment.size_bytes)
                for segment in log.segments[:-1]
                if segment.base_offset < end_offset
            ),
            first_dirty_offset=first_dirty_offset,
            end_offset=end_offset,
            now_ms=self.now,
            high_watermark=log.high_watermark,
            delete_retention_ms=RETENTION_MS,
            segment_bytes=self.config.segment_bytes,
            segment_index_bytes=self.config.segment_index_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            offset_map_bytes_max=offset_map_bytes_max,
            io_bytes_per_second=1e9,
            last_records=tuple(
                LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in log.producers.producers.items()
            ),
        )

    def check_compacted(self) -> None:
        """Check that the cleaned part of the log has only the records that compaction must keep.

        This part must have at most one record per key, no aborted records, and no tombstones past their delete horizon.
        """
        present = {offset: header for header, offsets in self.batches() for offset in offsets}
        newest: dict[bytes, Written] = {}
        for record in self.written.values():
            if record.offset < self.cleaned_to and not record.is_aborted:
                newest[record.key] = record
        for record in self.written.values():
            if record.value is None and record.offset in present and present[record.offset].has_delete_horizon:
                record.first_cleaned_ms = self.now if record.first_cleaned_ms is None else record.first_cleaned_ms
            if record.offset >= self.cleaned_to:
                assert record.offset in present or record.is_aborted
            elif record.is_aborted or newest[record.key] is not record:
                assert record.offset not in present, record
            elif record.value is not None:
                assert record.offset in present, record
            elif record.offset in present:
                header = present[record.offset]
                assert header.has_delete_horizon
                assert self.now < header.base_timestamp <= self.now + RETENTION_MS
            else:
                assert record.first_cleaned_ms is not None
                assert self.now >= record.first_cleaned_ms + RETENTION_MS

    # Restarts

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        end_offset, cleaner_offset = self.log.log_end_offset, self.log.cleaner_offset
        if cleanly:
            self.log.close(clean=True, now_ms=self.now)
        else:  # delete the indexes and producer snapshots
            self.log.release()
            for name in self.storage.listdir(DIRECTORY):
                if name.endswith((".index", ".timeindex", ".snapshot")):
                    self.storage.remove(f"{DIRECTORY}/{name}")
        self.log = self.load(was_closed_cleanly=cleanly)
        self.log.cleaner_offset = cleaner_offset
        assert self.log.log_end_offset == end_offset
        for producer_id, sequence in self.sequences.items():
            assert self.log.producers.producers[producer_id].last_sequence == sequence - 1
        self.check_open_transactions()

    def check_open_transactions(self) -> None:
        producers = self.log.producers.producers
        for producer_id in (11, 12):
            if producer_id in producers:
                assert producers[producer_id].transaction_first_offset == self.open.get(producer_id, -1)

    @precondition(lambda self: self.last_sent)
    @rule(data=st.data())
    def retry_last_batch_of_a_producer(self, data: st.DataObject) -> None:
        sent, base_offset = self.last_sent[data.draw(st.sampled_from(sorted(self.last_sent)))]
        info = self.log.append_as_leader(bytearray(sent), leader_epoch=0, now_ms=self.now)
        assert (info.base_offset, info.is_duplicate) == (base_offset, True)

    # Invariants

    def batches(self) -> list[tuple[BatchHeader, list[int]]]:
        """Return the header of each batch and the offsets of its data records.

        Check that the log's records equal the records in `written`.
        """
        found = []
        last_offset = -1
        for segment in self.log.segments:
            for _, header, batch in segment.iter_checked_batches(0):
                assert last_offset < header.base_offset
                last_offset = header.last_offset
                if header.is_control:
                    found.append((header, []))
                    continue
                columns = read_batch(batch, 0, header)
                rows = zip(columns.offsets or (), columns.values, columns.timestamp_list(), strict=True)
                for index, (offset, value, timestamp) in enumerate(rows):
                    record = self.written[offset]
                    assert columns.keys is not None
                    assert (columns.keys[index], value, timestamp) == (record.key, record.value, record.timestamp)
                    assert (columns.headers[index] if columns.headers is not None else []) == record.headers
                found.append((header, list(columns.offsets or ())))
        assert last_offset == self.log.log_end_offset - 1
        return found

    def aborted_transactions(self) -> list[AbortedTxn]:
        names = [name for name in self.storage.listdir(DIRECTORY) if name.endswith(".txnindex")]
        return [entry for name in names for entry in decode_transaction_index(self.storage.read(f"{DIRECTORY}/{name}"))]

    @invariant()
    def read_committed_consumer_sees_newest_values(self) -> None:
        aborted = self.aborted_transactions()
        table: dict[bytes, bytes | None] = {}
        for header, offsets in self.batches():
            if header.is_transactional and any(
                entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset < entry.last_offset
                for entry in aborted
            ):
                continue
            for offset in offsets:
                if self.written[offset].is_aborted is not None:
                    table[self.written[offset].key] = self.written[offset].value
        expected: dict[bytes, bytes | None] = {}
        for record in self.written.values():
            if record.is_aborted is False:
                expected[record.key] = record.value
        assert {key: value for key, value in table.items() if value is not None} == {
            key: value for key, value in expected.items() if value is not None
        }

    @invariant()
    def remaining_transactional_data_has_its_marker(self) -> None:
        batches = self.batches()
        markers = {header.base_offset for header, _ in batches if header.is_control and header.records_count}
        for header, offsets in batches:
            for producer_id, first, marker in self.transactions:
                if header.producer_id == producer_id and offsets and first <= header.base_offset < marker:
                    assert marker in markers

    @invariant()
    def reads_from_any_offset_return_it_or_later_records(self) -> None:
        log = self.log
        last = max((header.last_offset for header, _ in self.batches()), default=-1)
        for offset in range(log.log_start_offset, log.log_end_offset, 3):
            read = log.read(offset, 1 << 20)
            if offset <= last:
                assert read.buffers
                assert (
                    int.from_bytes(read.buffers[0][:8], "big") + int.from_bytes(read.buffers[0][23:27], "big") >= offset
                )


CompactionMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestCompaction = CompactionMachine.TestCase
