"""Tests that a metadata log with an incomplete end is not treated as a corrupt metadata log."""

from __future__ import annotations

import pytest

from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.server.kraft.metadata_corruption import find_corruption


def _log(batches: int) -> tuple[bytes, list[int]]:
    data, ends = b"", []
    for offset in range(batches):
        columns = RecordColumns(values=[b"record %d" % offset], timestamps=1)
        data += bytes(build_batch(columns, base_offset=offset))
        ends.append(len(data))
    return data, ends


def test_metadata_log_that_is_truncated_in_its_last_batch_is_not_reported_as_corrupt() -> None:
    log, ends = _log(4)
    for size in range(ends[-2], ends[-1] + 1):
        assert find_corruption(log[:size]) is None
    assert find_corruption(b"") is None


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_metadata_log_with_a_flipped_bit_before_the_last_batch_is_reported_as_corrupt(batch: int) -> None:
    log, ends = _log(4)
    starts = [0, *ends]
    for position in range(starts[batch] + 8, ends[batch]):
        if starts[batch] + 12 <= position < starts[batch] + 16:
            continue  # the checksum does not cover the leader epoch
        flipped = bytearray(log)
        flipped[position] ^= 0x10
        found = find_corruption(bytes(flipped))
        assert found is not None
        assert found[0] == starts[batch]
        assert found[1] in starts


def test_metadata_log_with_zeros_at_its_end_is_not_corrupt() -> None:
    log, _ = _log(2)
    assert find_corruption(log + bytes(200)) is None


def test_metadata_log_with_an_unwritten_sector_is_not_reported_as_corrupt() -> None:
    """Unsynced appends to a preallocated file may reach the disk in any order.

    Sectors that did not reach the disk contain zeros.
    """
    log, ends = _log(40)
    for first in range(0, len(log) - 512, 512):
        lost = bytearray(log + bytes(4096))
        lost[first : first + 512] = bytes(512)
        assert find_corruption(bytes(lost)) is None
    lost = bytearray(log + bytes(4096))
    lost[ends[2] : 1024] = bytes(1024 - ends[2])  # the sector was synced up to ends[2]
    assert find_corruption(bytes(lost)) is None


def test_metadata_log_with_zeros_that_fill_less_than_a_sector_is_corrupt() -> None:
    log, ends = _log(40)
    start = next(end for end in ends if end % 512 > 100)
    for zeros in (slice(start + 20, start + 40), slice(start, start + 60)):
        broken = bytearray(log)
        broken[zeros] = bytes(zeros.stop - zeros.start)
        assert find_corruption(bytes(broken)) is not None
