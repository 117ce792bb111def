"""The pieces that compiled codecs are made of: packers for runs of integers, varints, and what malformed input raises.

All tables are bounded: a peer that sends many different array lengths cannot make them grow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_broker.protocol.notation import Buffer

ARRAY_LENGTH_CACHED = 34
"""Arrays of integers shorter than this have a packer of their own; longer ones get one made for the occasion."""

BY_REFERENCE_SIZE = 1024
"""Bytes fields from this size on become buffers of their own in an encoded message; smaller ones are copied."""

ELEMENTS_MAX = 1_000_000
"""How many nested messages one message may hold. An empty one takes three bytes to send and a hundred to keep."""


class MalformedError(Exception):
    """Internal to codecs: the bytes break the format; the codec adds where."""


def encode_unsigned_varint(value: int) -> bytes:
    """Return the base-128 form of an unsigned integer, low bits first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def unsigned_varint(value: int) -> bytes:
    """Return the base-128 form of a length that is usually small."""
    return _SMALL_VARINTS[value] if value < 256 else encode_unsigned_varint(value)


_SMALL_VARINTS = tuple(encode_unsigned_varint(value) for value in range(256))


def rest_of_varint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read on after the first byte of an unsigned varint, which was above 127; return (value, position after it)."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedError("a varint of more than 32 bits")


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value, position after it) of the unsigned varint at `position`. Raises IndexError, MalformedError."""
    first = buffer[position]
    return (first, position + 1) if first < 128 else rest_of_varint(buffer, position + 1, first)


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Return the position after `count` tagged fields, whose values are passed over."""
    end = len(buffer)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > end:
            raise_short(size, end - position + size)
    return position


def skip_tagged_section(buffer: Buffer, position: int) -> int:
    """Return the position after the tagged fields of a struct, their count included."""
    count, position = read_unsigned_varint(buffer, position)
    return skip_tagged_fields(buffer, position, count) if count else position


def raise_short(size: int, left: int) -> None:
    """Refuse a length that goes beyond the end of the message."""
    raise MalformedError(f"{size} bytes announced, {max(left, 0)} left")


def raise_null() -> None:
    """Refuse null in a field that may not be null."""
    raise MalformedError("null where a value is required")


def raise_count(count: int, left: int) -> None:
    """Refuse an array whose elements cannot fit into what is left of the message."""
    raise MalformedError(f"an array of {count} elements announced, {left} bytes left")


def raise_elements() -> None:
    """Refuse a message that holds more nested messages than anybody has use for."""
    raise MalformedError(f"more than {ELEMENTS_MAX} elements in one message")


def raise_tag_size(read: int, announced: int) -> None:
    """Refuse a known tagged field that ends elsewhere than its size says."""
    raise MalformedError(f"a tagged field of {announced} bytes of which {read} were read")


def raise_uuid(value: bytes) -> None:
    """Refuse to encode a UUID that has not 16 bytes."""
    raise ValueError(f"a UUID has 16 bytes, not {len(value)}")


class _Writers(dict[int, Callable[..., bytes]]):
    """Array length -> the function that writes the length and so many integers."""

    def __init__(self, letter: str, *, compact: bool) -> None:
        self._letter = letter
        self._compact = compact

    def __missing__(self, count: int) -> Callable[..., bytes]:
        if self._compact:
            prefix = encode_unsigned_varint(count + 1)
            writer: Any = partial(struct.Struct(f">{len(prefix)}B{count}{self._letter}").pack, *prefix)
        else:
            writer = partial(struct.Struct(f">i{count}{self._letter}").pack, count)
        if count < ARRAY_LENGTH_CACHED:
            self[count] = writer
        return writer  # type: ignore[no-any-return]


INTEGER_LETTERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d"}
COMPACT_READERS = {
    kind: tuple(struct.Struct(f">{max(0, length - 1)}{letter}").unpack_from for length in range(ARRAY_LENGTH_CACHED))
    for kind, letter in INTEGER_LETTERS.items()
}
COMPACT_WRITERS = {kind: _Writers(letter, compact=True) for kind, letter in INTEGER_LETTERS.items()}
CLASSIC_WRITERS = {kind: _Writers(letter, compact=False) for kind, letter in INTEGER_LETTERS.items()}
