"""Which partition of an internal topic is the coordinator of a key."""

from __future__ import annotations

from functools import lru_cache

_INT32_MIN = -(2**31)


@lru_cache(maxsize=4096)
def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition that a group id or transactional id belongs to: Java's `abs(key.hashCode()) % partition_count`."""
    code = java_hash(key)
    return (0 if code == _INT32_MIN else abs(code)) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 units, wrapped to a signed int32."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code & 0x80000000 else code
