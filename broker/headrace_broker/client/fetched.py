"""The results of a consumer's poll: chunks of fetched bytes, and the records in them.

A `FetchedChunk` consists of spans of one or more batches. The thread that reads the chunk parses one span at a time.
This limits memory use, and the records before a corrupt batch are still returned. Only one thread may use a chunk at a
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.client.errors import CorruptRecordsError
from headrace_broker.client.fetch_core import Chunk
from headrace_broker.records.batch import CorruptBatchError
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns


@dataclass(slots=True)
class FetchedBatch:
    """Consecutive records of one partition. `next_offset` is the offset from which a reader continues."""

    topic: str
    partition: int
    columns: RecordColumns
    next_offset: int
    high_watermark: int

    def __len__(self) -> int:
        return len(self.columns)


class FetchedChunk:
    """Fetched bytes of a partition.

    `position` is the next offset to return, and `next_offset` is the offset after the chunk. `size_bytes` is the size
    of the fetched bytes, which stay in memory until the whole chunk is parsed.
    """

    __slots__ = (
        "_high_watermark",
        "_on_corrupt",
        "_remaining",
        "_spans",
        "_verify_crc",
        "next_offset",
        "partition",
        "position",
        "size_bytes",
        "topic",
    )

    def __init__(self, chunk: Chunk, *, verify_crc: bool, on_corrupt: Callable[[tuple[str, int], int], None]) -> None:
        """Wrap a chunk. `on_corrupt` receives the partition and the first offset that cannot be parsed."""
        self.topic = chunk.topic
        self.partition = chunk.partition
        self.position = chunk.from_offset
        self.next_offset = chunk.next_offset
        self.size_bytes = chunk.size_bytes
        self._high_watermark = chunk.high_watermark
        self._spans = deque(chunk.spans)
        self._remaining: FetchedBatch | None = None
        self._verify_crc = verify_crc
        self._on_corrupt = on_corrupt

    def next_batch(self, records_max: int | None = None) -> FetchedBatch | None:
        """Return the next records, or None at the end of the chunk.

        Raises CorruptRecordsError. After this error, the chunk is empty.
        """
        batch, self._remaining = self._remaining or self._parse(), None
        if batch is not None and records_max is not None and len(batch) > records_max:
            batch, self._remaining = _split(batch, records_max)
        self.position = self.next_offset if batch is None else batch.next_offset
        return batch

    def _parse(self) -> FetchedBatch | None:
        while self._spans:
            span = self._spans.popleft()
            try:
                columns = read_columns(span, self.position, verify_crc=self._verify_crc)
            except CorruptBatchError as error:
                self._spans.clear()
                self._on_corrupt((self.topic, self.partition), self.position)
                raise CorruptRecordsError(
                    f"{self.topic}-{self.partition} at offset {self.position}: {error}; "
                    "seek to a later offset to skip the corrupt records"
                ) from error
            if len(columns):
                next_offset = columns.next_offset if self._spans else None
                return FetchedBatch(
                    self.topic, self.partition, columns, next_offset or self.next_offset, self._high_watermark
                )
        return None


def _split(batch: FetchedBatch, count: int) -> tuple[FetchedBatch, FetchedBatch]:
    columns = batch.columns
    head, tail = columns.slice(0, count), columns.slice(count, len(columns))
    offsets = tail.offsets
    assert offsets is not None
    rest = FetchedBatch(batch.topic, batch.partition, tail, batch.next_offset, batch.high_watermark)
    first = FetchedBatch(batch.topic, batch.partition, head, offsets[0], batch.high_watermark)
    return first, rest
