"""Texts of log lines that are created only if the line is written, so that a DEBUG line costs nothing when it is off.

The texts contain names, counts, source partitions and offsets, never the content of a record or of a configuration.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

ITEMS_MAX = 10
T = TypeVar("T")


class Listing(Generic[T]):
    """Items, separated by commas. At most `ITEMS_MAX` items are listed, and the others are counted."""

    __slots__ = ("_items", "_text_of")

    def __init__(self, items: Collection[T], text_of: Callable[[T], str] = str) -> None:
        self._items = items
        self._text_of = text_of

    def __str__(self) -> str:
        items = self._items
        listed = ", ".join(map(self._text_of, islice(items, ITEMS_MAX)))
        more = len(items) - ITEMS_MAX
        return f"{listed} and {more} more" if more > 0 else listed or "none"


def partitions(items: Collection[tuple[str, int]]) -> Listing[tuple[str, int]]:
    """Return topic partitions (or tasks), for example `orders-0, orders-1`."""
    return Listing(items, lambda item: f"{item[0]}-{item[1]}")


def partition_offsets(offsets: Mapping[tuple[str, int], Any]) -> Listing[Any]:
    """Return the offsets of topic partitions, for example `orders-0: 100, orders-1: 250`."""
    return Listing(offsets.items(), lambda item: f"{item[0][0]}-{item[0][1]}: {item[1]}")


def source_offsets(offsets: Collection[tuple[Any, Any]]) -> Listing[Any]:
    """Return source partitions with their offsets."""
    return Listing(offsets, lambda item: f"{item[0]}: {item[1]}")


def offset_ranges(fetched: Sequence[Any]) -> Listing[Any]:
    """Return the offsets of fetched records, for example `orders-0 offsets 100-299`."""
    return Listing(fetched, _offset_range)


def chunk_ranges(chunks: Sequence[Any]) -> Listing[Any]:
    """Return the offsets of fetched chunks whose records have not been parsed."""
    return Listing(
        chunks, lambda chunk: f"{chunk.topic}-{chunk.partition} offsets {chunk.position}-{chunk.next_offset - 1}"
    )


def written(parts: Sequence[Any]) -> Listing[Any]:
    """Return the offsets of acknowledged records, from the metadata of the producer."""
    return Listing(parts, _written_range)


def _offset_range(fetched: Any) -> str:
    offsets = fetched.columns.offsets
    return f"{fetched.topic}-{fetched.partition} offsets {offsets[0]}-{offsets[-1]}"


def _written_range(part: Any) -> str:
    return f"{part.topic}-{part.partition} offsets {part.base_offset}-{part.base_offset + part.count - 1}"
