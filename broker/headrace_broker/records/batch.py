"""The header of a record batch (magic 2), its checksum, and iteration over consecutive batches in a buffer.

Kafka's documentation describes the format under "Record Batch". The CRC-32C covers all bytes from the attributes on, so
a leader can set the base offset and the partition leader epoch on append without changing the CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial

from headrace_broker.records._extensions import load_crc32c

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
OVERHEAD_SIZE = 12
"""The size of the base offset and batch length fields, which the batch length does not include."""
ATTRIBUTES_OFFSET = 21
CRC_OFFSET = 17
MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 0x7FFFFFFF

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_ATTRIBUTES_TO_MAX_TIMESTAMP = struct.Struct(">hiqq")

# Do not release the GIL. The checksum takes less time (20 GB/s) than waiting for the GIL while another thread is busy.
crc32c = partial(load_crc32c(), gil_release_mode=0)


class CorruptBatchError(Exception):
    """The bytes are not a valid record batch. `position` is the start of the batch in the buffer or file."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"record batch at position {position}: {reason}")
        self.position = position
        self.reason = reason


class IncompleteBatchError(CorruptBatchError):
    """The file ends inside the batch, for example because the process crashed during a write."""


class BatchHeader:
    """The fields of a batch header, as in the wire format."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "records_count",
    )

    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        partition_leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        records_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.records_count = records_count

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        return self.batch_length + OVERHEAD_SIZE

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0 = CreateTime, 1 = LogAppendTime."""
        return (self.attributes & TIMESTAMP_TYPE_MASK) >> 3

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 if the batch has no producer id.

        Sequence numbers wrap at 2^31.
        """
        if self.producer_id < 0 or self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"BatchHeader({fields})"


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`. Raises CorruptBatchError if the buffer ends inside the header."""
    try:
        return BatchHeader(*HEADER.unpack_from(buffer, position))
    except struct.error:
        raise CorruptBatchError(
            position,
            f"only {len(buffer) - position} bytes are left in the buffer, but a batch header has {HEADER_SIZE} bytes",
        ) from None


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each complete batch.

    Ignore an incomplete last batch, which a Fetch response may contain. Raises CorruptBatchError if a batch length is
    smaller than a batch header or a magic is not 2.
    """
    position = 0
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = BatchHeader(*HEADER.unpack_from(buffer, position))
        size_bytes = header.batch_length + OVERHEAD_SIZE
        if header.magic != MAGIC:
            raise CorruptBatchError(
                position, f"the batch has magic {header.magic}, but only magic {MAGIC} is supported"
            )
        if size_bytes < HEADER_SIZE:
            raise CorruptBatchError(position, f"the batch length {header.batch_length} is smaller than a batch header")
        if position + size_bytes > end:
            return
        yield position, header
        position += size_bytes


def compute_crc(buffer: Buffer, position: int, size_bytes: int) -> int:
    """Return the CRC-32C of the batch that starts at `position` and has `size_bytes` bytes."""
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : position + size_bytes])


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatchError if the CRC in the header does not match the batch."""
    computed = compute_crc(buffer, position, header.batch_length + OVERHEAD_SIZE)
    if computed != header.crc:
        raise CorruptBatchError(
            position,
            f"the CRC in the batch header is {header.crc:#010x}, but the CRC of the bytes in the batch is "
            f"{computed:#010x}",
        )


def patch_offset_and_epoch(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the partition leader epoch of the batch at `position` in place.

    The CRC does not cover these fields.
    """
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + OVERHEAD_SIZE, leader_epoch)


def patch_timestamps(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, *, timestamp_type: int, max_timestamp: int
) -> None:
    """Set the timestamp type (0 or 1) and the maximum timestamp in place, and update the CRC."""
    header.attributes = (header.attributes & ~TIMESTAMP_TYPE_MASK) | (timestamp_type << 3)
    header.max_timestamp = max_timestamp
    _ATTRIBUTES_TO_MAX_TIMESTAMP.pack_into(
        buffer,
        position + ATTRIBUTES_OFFSET,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
    )
    patch_crc(buffer, position, header)


def patch_crc(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Recompute the CRC and set it in place."""
    header.crc = compute_crc(buffer, position, header.batch_length + OVERHEAD_SIZE)
    _UINT32.pack_into(buffer, position + CRC_OFFSET, header.crc)
