from __future__ import annotations

import ctypes
from random import Random

import pytest

from headrace_broker.client.partitioner import StickyPartitioner, murmur2, partition_for_key, split_by_key
from headrace_broker.records.columns import RecordColumns


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # test vectors from Kafka's UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_hashes_equal_those_of_the_java_client(key: bytes, expected: int) -> None:
    assert ctypes.c_int32(murmur2(key)).value == expected


def test_murmur2_hashes_of_long_keys_are_deterministic_and_depend_on_the_length() -> None:
    assert murmur2(b"x" * 1000) == murmur2(b"x" * 1000)
    assert murmur2(b"x" * 1000) != murmur2(b"x" * 1001)


def test_partitioning_by_key_keeps_the_record_order_within_each_partition() -> None:
    """The test also checks the partition of each record. All records without a key go to the partition `keyless`."""
    keys = [b"a", b"b", None, b"a", b"c", None]
    columns = RecordColumns([b"%d" % index for index in range(6)], keys=list(keys), timestamps=list(range(6)))
    parts = split_by_key(columns, 4, keyless=3)
    assert sum(len(part) for part in parts.values()) == 6
    for partition, part in parts.items():
        assert part.keys is not None
        for key in part.keys:
            assert partition == (3 if key is None else partition_for_key(key, 4))
        assert part.timestamps == sorted(part.timestamps)  # type: ignore[arg-type]


def test_all_records_go_to_the_only_partition_of_a_topic() -> None:
    columns = RecordColumns([b"v"], keys=[b"k"])
    assert split_by_key(columns, 1, keyless=0) == {0: columns}


def test_sticky_partitioner_switches_partition_after_batch_size_bytes() -> None:
    sticky = StickyPartitioner(100, Random(1))
    first = sticky.partition("t", [0, 1, 2])
    sticky.count_produced("t", 99)
    assert sticky.partition("t", [0, 1, 2]) == first
    sticky.count_produced("t", 1)
    assert sticky.partition("t", [0, 1, 2]) != first


def test_sticky_partitioner_switches_partition_if_the_current_partition_has_no_leader() -> None:
    sticky = StickyPartitioner(100, Random(1))
    first = sticky.partition("t", [0, 1, 2])
    others = [number for number in (0, 1, 2) if number != first]
    assert sticky.partition("t", others) in others
