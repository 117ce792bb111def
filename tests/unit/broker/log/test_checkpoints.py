"""Tests of the exact bytes of checkpoint files, producer snapshots and indexes. Corrupt files are rejected."""

from __future__ import annotations

import pytest

from headrace_broker.log.checkpoints import (
    MalformedFileError,
    decode_clean_shutdown,
    decode_epoch_checkpoint,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epoch_checkpoint,
    encode_meta_properties,
    encode_offset_checkpoint,
    encode_partition_metadata,
)
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.index import OffsetIndex, TimeIndex
from headrace_broker.log.producer_state import CorruptSnapshotError, ProducerStateManager, decode_snapshot
from headrace_broker.records.batch import read_header
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


def test_offset_checkpoint_has_kafkas_format() -> None:
    offsets = {("a-b", 0): 5, ("a.b", 12): 2**40}
    data = encode_offset_checkpoint(offsets)
    assert data == b"0\n2\na-b 0 5\na.b 12 1099511627776\n"
    assert decode_offset_checkpoint(data) == offsets
    assert decode_offset_checkpoint(b"0\n0\n") == {}
    assert decode_offset_checkpoint(b"") == {}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x", "version"),
        (b"1\n0\n", "version"),
        (b"0\nx\n", "line 2"),
        (b"0\n2\na 0 1\n", "line 2 declares 2 entries, but the file contains 1"),
        (b"0\n1\na 0 1", "line 3 is incomplete"),
        (b"0\n1\na 0\n", "line 3"),
        (b"0\n1\na zero 1\n", "line 3"),
    ],
)
def test_error_for_a_malformed_checkpoint_names_the_line(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedFileError, match=reason):
        decode_offset_checkpoint(data)


def test_leader_epoch_checkpoint_has_kafkas_format() -> None:
    assert encode_epoch_checkpoint([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert decode_epoch_checkpoint(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]
    assert decode_epoch_checkpoint(b"") == []


def test_incomplete_leader_epoch_checkpoint_is_rejected() -> None:
    """A power failure may cut digits off the last start offset, which leaves a valid but wrong number."""
    complete = encode_epoch_checkpoint([(0, 0), (2, 50), (3, 500)])
    for size in range(1, len(complete)):
        with pytest.raises(MalformedFileError):
            decode_epoch_checkpoint(complete[:size])


def test_partition_metadata_has_kafkas_format() -> None:
    topic_id = bytes(range(16))
    data = encode_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert decode_partition_metadata(data) == topic_id
    for broken in (b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n", b"version: 0\ntopic_id: AAEC\n"):
        with pytest.raises(MalformedFileError):
            decode_partition_metadata(broken)


def test_meta_properties_with_java_comments_are_decoded() -> None:
    fields = decode_meta_properties(b"#\n#Sat Nov 21 10:00:00 UTC 2026\n" + encode_meta_properties("c", 3, "d"))
    assert fields == {"version": "1", "cluster.id": "c", "node.id": "3", "directory.id": "d"}
    with pytest.raises(MalformedFileError, match=r"cluster\.id"):
        decode_meta_properties(b"version=1\n")
    with pytest.raises(MalformedFileError, match="has version=2, only version=1 is supported"):
        decode_meta_properties(b"version=2\ncluster.id=c\nnode.id=3\n")


def test_clean_shutdown_marker_contains_broker_epoch() -> None:
    assert encode_clean_shutdown(9) == b'{"version":0,"brokerEpoch":9}'
    assert decode_clean_shutdown(encode_clean_shutdown(9)) == 9
    assert decode_clean_shutdown(b"") == -1
    assert decode_clean_shutdown(b"nonsense") == -1


def test_assigning_a_leader_epoch_removes_entries_with_a_later_epoch_or_a_larger_start_offset() -> None:
    cache = LeaderEpochCache([(1, 0), (2, 10), (4, 20)])
    assert cache.assign(4, 25) is False
    assert cache.assign(3, 15) is True
    assert cache.entries == [(1, 0), (2, 10), (3, 15)]
    assert cache.epoch_for_offset(12) == 2
    assert cache.end_offset_for(0, 30) == (0, 0)
    assert cache.end_offset_for(3, 30) == (3, 30)
    assert cache.truncate_from_start(12) is True
    assert cache.entries == [(2, 12), (3, 15)]
    assert cache.truncate_from_start(12) is False
    assert cache.truncate_from_end(15) is True
    assert cache.entries == [(2, 12)]


def test_producer_snapshot_is_restored_and_corrupt_snapshot_is_rejected() -> None:
    state = ProducerStateManager()
    options = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 2**31 - 1, "base_offset": 40}
    state.update(read_header(build_batch(RecordColumns(values=[b"a", b"b"], timestamps=99), **options)))
    data = state.encode_snapshot()
    assert len(data) == 10 + 46
    entry = decode_snapshot(data)[7]
    last = entry.batches[-1]
    assert (entry.epoch, last.first_sequence, last.last_sequence, last.base_offset) == (2, 2**31 - 1, 0, 40)
    for index in range(len(data)):
        broken = bytearray(data)
        broken[index] ^= 1
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(broken))
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data[:-1])


def test_producer_snapshot_contains_last_five_batches() -> None:
    state = ProducerStateManager()
    for number in range(7):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * number, "base_offset": 2 * number}
        state.update(read_header(build_batch(RecordColumns(values=[b"a", b"b"], timestamps=99), **options)))
    loaded = ProducerStateManager()
    loaded.load_snapshot(state.encode_snapshot(), 14)
    for number in range(2, 7):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * number}
        header = read_header(build_batch(RecordColumns(values=[b"a", b"b"], timestamps=99), **options))
        duplicate = loaded.check(header)
        assert duplicate is not None
        assert duplicate.base_offset == 2 * number


def test_indexes_have_kafkas_format_and_their_trailing_zeros_are_ignored() -> None:
    index = OffsetIndex()
    index.append(5, 4200)
    index.append(9, 8300)
    assert index.encode() == bytes.fromhex("00000005000010680000000900 00206c".replace(" ", ""))
    decoded = OffsetIndex.decode(index.encode() + bytes(80))
    assert list(decoded.positions) == [4200, 8300]
    assert [decoded.lookup(offset) for offset in (0, 4, 5, 8, 9, 100)] == [0, 0, 4200, 4200, 8300, 8300]
    times = TimeIndex()
    times.maybe_append(1000, 5)
    times.maybe_append(1000, 9)
    times.maybe_append(1001, 12)
    assert times.encode().hex() == "00000000000003e80000000500000000000003e90000000c"
    assert list(TimeIndex.decode(times.encode() + bytes(24)).timestamps) == [1000, 1001]
    for broken in (b"1234567", b"\0\0\0\5\0\0\0\5\0\0\0\1\0\0\0\1"):
        with pytest.raises(ValueError, match=r"not a multiple of|order"):
            OffsetIndex.decode(broken)
