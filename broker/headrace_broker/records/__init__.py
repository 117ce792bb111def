"""Record batches (magic 2): header, CRC, iteration, builder, reader, compression, control records.

The functions convert between bytes and columns. This package does no I/O.
"""

from __future__ import annotations

from headrace_broker.records.batch import HEADER_SIZE, BatchHeader, CorruptBatchError, iter_batches, read_header
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression

__all__ = [
    "HEADER_SIZE",
    "BatchHeader",
    "Compression",
    "CorruptBatchError",
    "RecordColumns",
    "iter_batches",
    "read_header",
]
