"""Maps a group id or transactional id to a partition of the coordinator's internal topic."""

from __future__ import annotations

from functools import lru_cache

_INT32_MIN = -(2**31)


@lru_cache(maxsize=4096)
def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of a group id or transactional id: Java's `abs(key.hashCode()) % partition_count`."""
    code = java_hash(key)
    return (0 if code == _INT32_MIN else abs(code)) % partition_count


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode()`, computed over UTF-16 code units and wrapped to a signed int32."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code & 0x80000000 else code
