"""Encodes and decodes a segment's transaction index: the aborted transactions whose markers are in the segment."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

ENTRY_SIZE = 34
_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    """An aborted transaction from its first record (`first_offset`) to its abort marker (`last_offset`)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_transaction_index(entries: Iterable[AbortedTxn]) -> bytes:
    """Return the content of the index file. `entries` must be in the order of their abort markers."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_transaction_index(data: bytes) -> list[AbortedTxn]:
    """Return the entries of a transaction index.

    If an interrupted write left an incomplete last entry, this entry is ignored.

    Raises ValueError for an unknown version.
    """
    entries = []
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]):
        if version != _VERSION:
            raise ValueError(f"a transaction index entry has version {version}, only {_VERSION} is supported")
        entries.append(AbortedTxn(*fields))
    return entries
