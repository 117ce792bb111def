"""The producer state of a partition: sequence checks, duplicate detection, snapshots (KIP-98, KIP-360).

The last five batches of each producer are kept, so that a retried batch returns the offset of the first append. Kafka's
snapshots contain one entry per producer, for its last batch. A snapshot of this broker contains one entry for each of
the five batches, oldest first, so that retries also succeed after a truncation or a restart. Kafka can read such a
snapshot, because it uses the last entry of a producer.

The leader calls `check`, writes the batch, then calls `update`. Followers and recovery only call `update`.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import SEQUENCE_MAX, BatchHeader, crc32c

NO_EPOCH = -1
BATCHES_KEPT = 5

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_CRC_START = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """A producer snapshot is incomplete, has an unknown version, or has a wrong checksum."""


class ProducerBatch(NamedTuple):
    """The sequences, offsets and timestamp of a recent batch of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


_NO_BATCH = ProducerBatch(-1, -1, -1, 0, -1)


@dataclass(slots=True)
class ProducerEntry:
    """The epoch of a producer, its last batches, and the first offset of its open transaction.

    This offset is -1 if the producer has no open transaction.
    """

    epoch: int = NO_EPOCH
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    coordinator_epoch: int = -1
    timestamp: int = -1
    transaction_first_offset: int = -1
    is_active: bool = field(default=False, compare=False)
    """Whether a batch of the producer was appended since the last call of `expire`."""
    seen_ms: int = field(default=-1, compare=False)
    """Time of the last `expire` call that found the producer active; -1 = never since the log was opened."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStateManager:
    """The state of each producer of one partition after the last batch below `end_offset` was appended."""

    __slots__ = ("_open_transactions", "end_offset", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        self.end_offset = 0
        self._open_transactions: dict[int, int] = {}

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the recent batch that the new batch repeats, or None if the new batch has the expected sequence.

        Raises ApiError: INVALID_PRODUCER_EPOCH for a fenced producer, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap or for a
        duplicate that is older than the last five batches.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None or entry.epoch == NO_EPOCH:
            return None
        if header.producer_epoch < entry.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} sent epoch {header.producer_epoch}, but its current epoch is "
                f"{entry.epoch}",
            )
        first_sequence = header.base_sequence
        if header.producer_epoch > entry.epoch:
            if first_sequence != 0:
                raise _out_of_order(
                    header, f"the first batch of a new epoch must have sequence 0, not {first_sequence}"
                )
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        if entry.batches:
            expected = (entry.last_sequence + 1) & SEQUENCE_MAX
            if first_sequence != expected:
                raise _out_of_order(header, f"the batch has sequence {first_sequence}, expected {expected}")
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Check the epoch of a batch without a sequence.

        Raises ApiError INVALID_PRODUCER_EPOCH for a fenced producer.
        """
        entry = self.producers.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} sent epoch {header.producer_epoch}, but its current epoch is "
                f"{entry.epoch}",
            )

    def update(self, header: BatchHeader) -> None:
        """Update the producer's entry with a data batch that was appended to the log."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry()
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        if header.base_sequence >= 0:
            entry.batches.append(
                ProducerBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.last_offset,
                    header.last_offset_delta,
                    header.max_timestamp,
                )
            )
        entry.timestamp = header.max_timestamp
        entry.is_active = True
        if header.is_transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = header.base_offset
            self._open_transactions[header.producer_id] = header.base_offset

    def update_marker(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """Update the producer's entry with a commit or abort marker, which ends the producer's transaction."""
        entry = self.producers.setdefault(header.producer_id, ProducerEntry())
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.coordinator_epoch = coordinator_epoch
        entry.timestamp = header.max_timestamp
        entry.is_active = True
        entry.transaction_first_offset = -1
        self._open_transactions.pop(header.producer_id, None)

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction, or None if no transaction is open."""
        return min(self._open_transactions.values(), default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove the producers that were idle for `expiration_ms` and have no open transaction.

        Call this method periodically.

        Idle time is measured from the last append and not from record timestamps. For example, a producer that copies
        old records is not idle. If this method removed such a producer, the records of the producer's next retry would
        be appended twice. Record timestamps are used only for producers without an append since the log was opened.
        """
        for producer_id, entry in list(self.producers.items()):
            if entry.is_active:
                entry.is_active, entry.seen_ms = False, now_ms
            last_ms = entry.seen_ms if entry.seen_ms >= 0 else entry.timestamp
            if entry.transaction_first_offset < 0 and now_ms - last_ms >= expiration_ms:
                del self.producers[producer_id]

    def clear(self, end_offset: int) -> None:
        self.producers.clear()
        self._open_transactions.clear()
        self.end_offset = end_offset

    def encode_snapshot(self) -> bytes:
        """Return the snapshot file's contents (version 1)."""
        entries = [
            (producer_id, entry, batch)
            for producer_id, entry in self.producers.items()
            for batch in entry.batches or (_NO_BATCH,)
        ]
        data = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(entries)))
        for producer_id, entry, batch in entries:
            is_last = not entry.batches or batch is entry.batches[-1]
            data += _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                entry.timestamp if is_last else batch.timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        data[2:6] = crc32c(memoryview(data)[_SNAPSHOT_CRC_START:]).to_bytes(4, "big")
        return bytes(data)

    def load_snapshot(self, data: bytes, end_offset: int) -> None:
        """Replace the state with the snapshot `data`, which was taken at `end_offset`. Raises CorruptSnapshotError."""
        self.producers = decode_snapshot(data)
        self.end_offset = end_offset
        self._open_transactions = {
            producer_id: entry.transaction_first_offset
            for producer_id, entry in self.producers.items()
            if entry.transaction_first_offset >= 0
        }


def decode_snapshot(data: bytes) -> dict[int, ProducerEntry]:
    """Return the entry of each producer id in the snapshot, with all its batches. Raises CorruptSnapshotError."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshotError(f"the file has {len(data)} bytes, too few for a producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshotError(
            f"the snapshot has version {version}; headrace reads only version {_SNAPSHOT_VERSION}"
        )
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshotError(
            f"the file has {len(data)} bytes, which is not the size of a snapshot with {count} entries"
        )
    if crc != crc32c(memoryview(data)[_SNAPSHOT_CRC_START:]):
        raise CorruptSnapshotError("the checksum of the snapshot does not match its contents")
    producers: dict[int, ProducerEntry] = {}
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = (
            fields
        )
        entry = producers.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = producers[producer_id] = ProducerEntry(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.timestamp = timestamp
        entry.transaction_first_offset = first_offset
        if last_offset >= 0:
            first_sequence = (last_sequence - offset_delta) & SEQUENCE_MAX
            entry.batches.append(ProducerBatch(first_sequence, last_sequence, last_offset, offset_delta, timestamp))
    return producers


def _out_of_order(header: BatchHeader, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} epoch {header.producer_epoch}: {reason}",
    )
