"""Validates every record in a batch. The leader does this only for compacted topics, which require keys."""

from __future__ import annotations

from headrace_broker.records._extensions import load_aiokafka_records
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.compression import DECOMPRESSED_SIZE_BYTES_MAX
from headrace_broker.records.reader import decompress_batch


def find_keyless_records(
    view: memoryview,
    position: int,
    header: BatchHeader,
    decompressed_size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> list[int]:
    """Check the offset of every record in the batch, and return the indexes of the records without a key.

    Raises CorruptBatchError if records cannot be parsed, their offsets are not consecutive, or their number differs
    from the record count in the header.
    """
    batch = decompress_batch(view, position, header, decompressed_size_bytes_max)
    keyless: list[int] = []
    count = 0
    try:
        for record in load_aiokafka_records().DefaultRecordBatch(batch):
            if record.offset != header.base_offset + count:
                reason = f"record {count} has offset delta {record.offset - header.base_offset}, expected {count}"
                raise CorruptBatchError(position, reason)
            if record.key is None:
                keyless.append(count)
            count += 1
    except CorruptBatchError:
        raise
    except Exception as error:  # the C parser raises various exceptions, all for invalid bytes
        raise CorruptBatchError(position, f"record {count} cannot be parsed: {error}") from error
    if count != header.records_count:
        raise CorruptBatchError(
            position,
            f"the batch has {count} records, but the record count in the batch header is {header.records_count}",
        )
    return keyless
