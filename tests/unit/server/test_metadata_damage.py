"""A torn end is no damage; a broken batch before a sound one is."""

from __future__ import annotations

import pytest

from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.server.metadata_damage import damage_inside


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
