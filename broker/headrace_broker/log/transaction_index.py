"""The transaction index of a segment: the aborted transactions whose markers lie in it, in Kafka's format. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

ENTRY_SIZE = 34
_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """`first_offset` is its first record's, `last_offset` its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_transaction_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the file of these entries, which are in the order of their markers."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_transaction_index(data: bytes) -> list[AbortedTransaction]:
    """Return the entries; one cut off at the end is still being written. Raises ValueError for an unknown version."""
    entries = []
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]):
        if version != _VERSION:
            raise ValueError(f"a transaction index entry of version {version}, only {_VERSION} is known")
        entries.append(AbortedTransaction(*fields))
    return entries
