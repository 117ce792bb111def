"""The offset map of the log cleaner: the newest offset of each key, with a memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

_KEY_SIZE_MAX = 32
_ENTRY_BYTES = 160
"""Memory of a map entry in bytes, without the bytes of the key: two objects and their share of the hash table."""


class OffsetMap:
    """The newest offset of every key in the dirty range of a log.

    The map stores a key of up to 32 bytes unchanged. It stores a 256-bit digest of a longer key.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._newest: dict[bytes | None, int] = {}
        self._keys_seen = 0
        self._key_bytes_seen = 0

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        """Whether the map has reached its memory limit.

        The memory use is estimated from the average key size. `add` does not check the limit.
        """
        if not self._keys_seen:
            return False
        per_entry = _ENTRY_BYTES + self._key_bytes_seen / self._keys_seen
        return len(self._newest) * per_entry >= self._size_bytes_max

    def add(self, keys: Sequence[bytes], offsets: Iterable[int]) -> None:
        """Add the keys of a batch. `offsets` must be increasing, and larger than the offsets of earlier batches."""
        map_keys = _to_map_keys(keys)
        self._keys_seen += len(map_keys)
        self._key_bytes_seen += sum(map(len, map_keys))
        self._newest.update(zip(map_keys, offsets, strict=True))

    def latest_offsets(self, keys: Sequence[bytes | None]) -> list[int | None]:
        """Return the newest offset of each key.

        The result contains None for a null key and for a key that is not in the map.
        """
        if None in keys:
            return [None if key is None else self._newest.get(_to_map_keys((key,))[0]) for key in keys]
        return list(map(self._newest.get, _to_map_keys(keys)))  # type: ignore[arg-type]  # none is None here


def _to_map_keys(keys: Sequence[bytes]) -> Sequence[bytes]:
    if max(map(len, keys), default=0) <= _KEY_SIZE_MAX:
        return keys
    return [key if len(key) <= _KEY_SIZE_MAX else b"\0" + blake2b(key, digest_size=32).digest() for key in keys]
