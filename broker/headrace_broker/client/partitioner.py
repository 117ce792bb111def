"""Chooses the partition of a record.

The murmur2 hash of the record's key determines the partition, as in Java. Records without a key go to a sticky
partition (KIP-794). This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_broker.records.columns import RecordColumns

if TYPE_CHECKING:
    from random import Random

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = tuple(struct.Struct(f"<{count}I") for count in range(65))


class _MixedWords(dict[int, int]):
    """Caches the result of murmur2's mixing step for each 4-byte word. Keys often share words (prefixes, digits)."""

    def __missing__(self, word: int) -> int:
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        if len(self) < _MIXED_WORDS_MAX:
            self[word] = mixed
        return mixed


_MIXED_WORDS_MAX = 16_384
_MIXED = _MixedWords()


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data` that Kafka computes, as an unsigned number."""
    length = len(data)
    count = length >> 2
    h = _SEED ^ length
    words = _WORDS[count] if count < 65 else struct.Struct(f"<{count}I")
    mixed = _MIXED
    for word in words.unpack_from(data):
        h = (h * _M & _MASK) ^ mixed[word]
    tail = length & 3
    if tail:
        h = (h ^ int.from_bytes(data[-tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, as Java's default partitioner does."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Selects a partition for a topic's keyless records; changes the partition after about `batch_size` bytes."""

    def __init__(self, batch_size: int, random: Random) -> None:
        self._switch_bytes = max(batch_size, 1)
        self._random = random
        self._current: dict[str, int] = {}
        self._produced: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """Return the topic's current partition for keyless records.

        `available` contains the partitions with a leader, or all partitions if none of them has a leader.
        """
        current = self._current.get(topic)
        if current is None or current not in available:
            return self._switch(topic, available)
        if self._produced[topic] >= self._switch_bytes:
            return self._switch(topic, available)
        return current

    def count_produced(self, topic: str, size_bytes: int) -> None:
        """Add `size_bytes` to the number of bytes sent to the topic's current partition."""
        self._produced[topic] = self._produced.get(topic, 0) + size_bytes

    def _switch(self, topic: str, available: Sequence[int]) -> int:
        others = [number for number in available if number != self._current.get(topic)] or list(available)
        self._current[topic] = self._random.choice(others)
        self._produced[topic] = 0
        return self._current[topic]


def split_by_key(columns: RecordColumns, partition_count: int, keyless: int) -> dict[int, RecordColumns]:
    """Split the records into partitions by key.

    The records of a partition keep their order. Keyless records go to partition `keyless`.
    """
    keys = columns.keys
    if keys is None:
        return {keyless: columns}
    if partition_count == 1:
        return {0: columns}
    indexes: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        partition = keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count
        chosen = indexes.get(partition)
        if chosen is None:
            indexes[partition] = [index]
        else:
            chosen.append(index)
    if len(indexes) == 1:
        return dict.fromkeys(indexes, columns)
    return {partition: select_records(columns, chosen) for partition, chosen in indexes.items()}


def select_records(columns: RecordColumns, indexes: Sequence[int]) -> RecordColumns:
    """Return the records at `indexes`, in the order of `indexes`."""
    values, keys, headers, timestamps = columns.values, columns.keys, columns.headers, columns.timestamps
    return RecordColumns(
        values=[values[index] for index in indexes],
        keys=None if keys is None else [keys[index] for index in indexes],
        headers=None if headers is None else [headers[index] for index in indexes],
        timestamps=[timestamps[index] for index in indexes] if isinstance(timestamps, list) else timestamps,
        timestamp_type=columns.timestamp_type,
        before=columns.before,
        after=columns.after,
    )
