"""Tells a torn end of the metadata log, which a crash leaves and recovery may cut, from damage inside it. Pure.

Every metadata record is synced before it counts, so only the last appends can be incomplete. A broken batch with a
sound one behind it was written whole once, unless a part of it never reached the disk: in a preallocated file a power
failure leaves zeros there, in whole sectors. Cutting it would forget topics that exist, and set their data aside.
"""

from __future__ import annotations

from headrace_broker.records.batch import HEADER_SIZE, BatchHeader, CorruptBatchError, read_header, verify_crc

_SECTOR_BYTES = 512
_ZEROS_MIN = 8
"""Fewer zeros at the begin of a batch are its base offset, which says nothing of the sector."""
_MAGIC_OFFSET = 16
_MAGIC = b"\x02"


def end_of_sound_batches(log: bytes, base_offset: int) -> tuple[int, int]:
    """(position, offset) where something else than a sound batch follows in a segment that begins at `base_offset`."""
    position, offset = 0, base_offset
    while (header := _sound_batch(log, position)) is not None:
        position += header.size_bytes
        offset = header.next_offset
    return position, offset


def damage_inside(log: bytes) -> tuple[int, int] | None:
    """Where the first broken batch of a segment begins and where a sound one follows it; None when none does."""
    broken, _ = end_of_sound_batches(log, 0)
    magic = log.find(_MAGIC, broken + 1 + _MAGIC_OFFSET)
    while magic >= 0:
        position = magic - _MAGIC_OFFSET
        if _sound_batch(log, position) is not None:
            return None if _has_lost_sector(log, broken, position) else (broken, position)
        magic = log.find(_MAGIC, magic + 1)
    return None


def _has_lost_sector(log: bytes, start: int, end: int) -> bool:
    """Whether a sector between `start` and `end`, as far as it lies there, is as empty as before it was written."""
    position = start
    while (stop := (position // _SECTOR_BYTES + 1) * _SECTOR_BYTES) < end + _ZEROS_MIN:
        if stop - position >= _ZEROS_MIN and not any(log[position:stop]):
            return True
        position = stop
    return False


def _sound_batch(log: bytes, position: int) -> BatchHeader | None:
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
