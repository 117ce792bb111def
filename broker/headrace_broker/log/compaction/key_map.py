"""key -> newest offset, for as many keys as the memory given allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

_KEY_SIZE_MAX = 32
_ENTRY_BYTES = 160
"""What an entry costs beside the bytes of its key: two objects, and their place in a table that doubles as it grows."""


class KeyMap:
    """The newest offset of every key in the dirty part of a log.

    Keys of up to 32 bytes stand for themselves, longer ones are told apart by 256 bits of their digest.
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
        """Whether the memory is used up, by the average size of the keys; a batch more is always taken."""
        if not self._keys_seen:
            return False
        per_entry = _ENTRY_BYTES + self._key_bytes_seen / self._keys_seen
        return len(self._newest) * per_entry >= self._size_bytes_max

    def add(self, keys: Sequence[bytes], offsets: Iterable[int]) -> None:
        """Take in the keys of a batch; its offsets rise, and lie behind those of the batches before."""
        short = _short(keys)
        self._keys_seen += len(short)
        self._key_bytes_seen += sum(map(len, short))
        self._newest.update(zip(short, offsets, strict=True))

    def newest(self, keys: Sequence[bytes | None]) -> list[int | None]:
        """Return the newest offset of each key, None for one that the map does not hold, and for a missing key."""
        if None in keys:
            return [None if key is None else self._newest.get(_short((key,))[0]) for key in keys]
        return list(map(self._newest.get, _short(keys)))  # type: ignore[arg-type]  # no None among them


def _short(keys: Sequence[bytes]) -> Sequence[bytes]:
    if max(map(len, keys), default=0) <= _KEY_SIZE_MAX:
        return keys
    return [key if len(key) <= _KEY_SIZE_MAX else b"\0" + blake2b(key, digest_size=32).digest() for key in keys]
