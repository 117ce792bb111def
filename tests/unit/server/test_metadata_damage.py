"""A torn end is no damage; a broken batch before a sound one is."""

from __future__ import annotations

import pytest

from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.server.kraft.metadata_damage import damage_inside


def _log(batches: int) -> tuple[bytes, list[int]]:
    data, ends = b"", []
    for offset in range(batches):
        columns = RecordColumns(values=[b"record %d" % offset], timestamps=1)
        data += bytes(build_batch(columns, base_offset=offset))
        ends.append(len(data))
    return data, ends


def test_a_sound_log_and_a_log_torn_anywhere_in_its_last_batch_are_not_damaged() -> None:
    log, ends = _log(4)
    for size in range(ends[-2], ends[-1] + 1):
        assert damage_inside(log[:size]) is None
    assert damage_inside(b"") is None


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_flipped_bit_anywhere_before_the_last_batch_is_damage(batch: int) -> None:
    log, ends = _log(4)
    starts = [0, *ends]
    for position in range(starts[batch] + 8, ends[batch]):
        if starts[batch] + 12 <= position < starts[batch] + 16:
            continue  # the leader epoch lies outside the checksum
        flipped = bytearray(log)
        flipped[position] ^= 0x10
        found = damage_inside(bytes(flipped))
        assert found is not None
        assert found[0] == starts[batch]
        assert found[1] in starts


def test_zeros_behind_the_end_are_not_damage() -> None:
    log, _ = _log(2)
    assert damage_inside(log + bytes(200)) is None


def test_a_sector_that_never_reached_the_disk_is_not_damage() -> None:
    """Unsynced appends to a preallocated file may get there in any order: what is missing are zeros."""
    log, ends = _log(40)
    for first in range(0, len(log) - 512, 512):
        lost = bytearray(log + bytes(4096))
        lost[first : first + 512] = bytes(512)
        assert damage_inside(bytes(lost)) is None
    lost = bytearray(log + bytes(4096))
    lost[ends[2] : 1024] = bytes(1024 - ends[2])  # a part of its first sector had been synced
    assert damage_inside(bytes(lost)) is None


def test_zeros_that_are_no_sector_are_damage() -> None:
    log, ends = _log(40)
    start = next(end for end in ends if end % 512 > 100)
    for zeros in (slice(start + 20, start + 40), slice(start, start + 60)):
        broken = bytearray(log)
        broken[zeros] = bytes(zeros.stop - zeros.start)
        assert damage_inside(bytes(broken)) is not None
