"""The full walk over a batch that a leader does only where it must: compacted topics, or when asked to validate."""

from __future__ import annotations

from headrace_broker.records._extensions import load_aiokafka_records
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.compression import DECOMPRESSED_SIZE_BYTES_MAX
from headrace_broker.records.reader import uncompressed


def find_keyless_records(
    view: memoryview,
    position: int,
    header: BatchHeader,
    decompressed_size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> list[int]:
    """Check every record's offset against its place in the batch, and return the indexes of those without a key.

    Raises CorruptBatchError for records that cannot be parsed, do not count by 1, or are not as many as declared.
    """
    batch = uncompressed(view, position, header, decompressed_size_bytes_max)
    keyless: list[int] = []
    count = 0
    try:
        for record in load_aiokafka_records().DefaultRecordBatch(batch):
            if record.offset != header.base_offset + count:
                reason = f"record {count} has offset delta {record.offset - header.base_offset}"
                raise CorruptBatchError(position, reason)
            if record.key is None:
                keyless.append(count)
            count += 1
    except CorruptBatchError:
        raise
    except Exception as error:  # the C parser raises what it likes; all of it means broken bytes
        raise CorruptBatchError(position, f"record {count} cannot be parsed: {error}") from error
    if count != header.records_count:
        raise CorruptBatchError(position, f"{count} records where the header says {header.records_count}")
    return keyless
