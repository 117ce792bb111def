"""Tests that the standalone offsets file has the same bytes as the output of Java's ObjectOutputStream."""

from __future__ import annotations

import pytest

from headrace.stores import java_hashmap
from headrace.stores.java_hashmap import JavaStreamError

# Written by OpenJDK 17: new HashMap<byte[], byte[]>() with put("k0", "v0"), and an empty map.
GOLDEN_ONE = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f724900097468726573"
    "686f6c6478703f4000000000000c77080000001000000001757200025b42acf317f8060854e00200007870000000026b307571007e000200"
    "00000276307" + "8"
)
# Written by the same JDK: "k0" -> "v0", and an entry with the same array as key and value. Java writes the value as a
# reference to the key (71 007e0005).
GOLDEN_SHARED = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f724900097468726573"
    "686f6c6478703f4000000000000c77080000001000000002757200025b42acf317f8060854e00200007870000000026b307571007e000200"
    "00000276307571007e00020000000473616d6571007e000578"
)


def test_java_hash_map_is_serialized_to_the_same_bytes_as_by_java() -> None:
    assert java_hashmap.dump({b"k0": b"v0"}) == GOLDEN_ONE


def test_java_hash_map_that_java_serialized_is_deserialized() -> None:
    assert java_hashmap.load(GOLDEN_ONE) == {b"k0": b"v0"}
    assert java_hashmap.load(GOLDEN_SHARED) == {b"k0": b"v0", b"same": b"same"}


@pytest.mark.parametrize("size", [0, 1, 12, 13, 24, 25, 1000])
def test_serialized_java_hash_map_is_deserialized_to_the_same_entries(size: int) -> None:
    entries = {b"key %d" % n: (None if n % 7 == 3 else b"value" * n) for n in range(size)}
    assert java_hashmap.load(java_hashmap.dump(entries)) == entries


@pytest.mark.parametrize(("size", "capacity"), [(0, 16), (12, 16), (13, 32), (24, 32), (25, 64)])
def test_table_capacity_of_a_java_hash_map_doubles_when_the_load_factor_is_exceeded(size: int, capacity: int) -> None:
    assert java_hashmap.table_capacity(size) == capacity


def test_null_keys_and_values_round_trip_through_java_hash_map() -> None:
    assert java_hashmap.load(java_hashmap.dump({None: b"x", b"y": None})) == {None: b"x", b"y": None}


@pytest.mark.parametrize("size", range(len(GOLDEN_SHARED)))
def test_truncated_java_object_stream_is_rejected(size: int) -> None:
    with pytest.raises(JavaStreamError):
        java_hashmap.load(GOLDEN_SHARED[:size])


def test_java_object_stream_that_does_not_contain_a_hash_map_is_rejected() -> None:
    with pytest.raises(JavaStreamError, match="does not start with"):
        java_hashmap.load(b"{}" * 50)
    with pytest.raises(JavaStreamError, match=r"java\.util\.TreeMap"):
        java_hashmap.load(GOLDEN_ONE.replace(b"java.util.HashMap", b"java.util.TreeMap"))
