"""Distinguishes an incomplete end of the metadata log from corruption in the middle of the log.

A crash can leave an incomplete batch at the end of the log, and recovery may truncate the log there. Every metadata
record is synced before it counts as committed, so only the last appends can be incomplete. If a valid batch follows a
corrupt batch, the corrupt batch was once written completely, unless a power failure left whole sectors of a
preallocated file as zeros. The log must not be truncated at a batch that was once complete, because this would delete
topics from the metadata, and their partitions would become stray. This module does no I/O.
"""

from __future__ import annotations

from headrace_broker.records.batch import HEADER_SIZE, BatchHeader, CorruptBatchError, read_header, verify_crc

_SECTOR_BYTES = 512
_ZEROS_MIN = 8
"""The number of zero bytes that proves that a sector is unwritten. A base offset can begin with 7 zero bytes."""
_MAGIC_OFFSET = 16
_MAGIC = b"\x02"


def end_of_valid_batches(log: bytes, base_offset: int) -> tuple[int, int]:
    """Return (byte position, next offset) after the valid batches at the start of a segment with this base offset."""
    position, offset = 0, base_offset
    while (header := _read_valid_batch(log, position)) is not None:
        position += header.size_bytes
        offset = header.next_offset
    return position, offset


def find_corruption(log: bytes) -> tuple[int, int] | None:
    """Return the byte positions of a segment's first corrupt batch and of the next valid batch.

    Return None if no valid batch follows the corrupt batch, or if the corrupt range contains a sector that was never
    written.
    """
    broken, _ = end_of_valid_batches(log, 0)
    magic = log.find(_MAGIC, broken + 1 + _MAGIC_OFFSET)
    while magic >= 0:
        position = magic - _MAGIC_OFFSET
        if _read_valid_batch(log, position) is not None:
            return None if _has_unwritten_sector(log, broken, position) else (broken, position)
        magic = log.find(_MAGIC, magic + 1)
    return None


def _has_unwritten_sector(log: bytes, start: int, end: int) -> bool:
    """Return whether the range `start` to `end` contains a sector of zeros, as a preallocated file does."""
    position = start
    while (stop := (position // _SECTOR_BYTES + 1) * _SECTOR_BYTES) < end + _ZEROS_MIN:
        if stop - position >= _ZEROS_MIN and not any(log[position:stop]):
            return True
        position = stop
    return False


def _read_valid_batch(log: bytes, position: int) -> BatchHeader | None:
    if position + HEADER_SIZE > len(log) or log[position + _MAGIC_OFFSET] != _MAGIC[0]:
        return None
    try:
        header = read_header(log, position)
        if header.size_bytes < HEADER_SIZE or position + header.size_bytes > len(log):
            return None
        verify_crc(log, position, header)
    except CorruptBatchError:
        return None
    return header
