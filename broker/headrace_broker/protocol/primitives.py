"""Functions that compiled codecs call to pack integer arrays, to read varints and to reject malformed input.

All caches are bounded: a peer that sends many different array lengths cannot make the caches grow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_broker.protocol.notation import Buffer

ARRAY_LENGTH_CACHED = 34
"""Packers for integer arrays below this length are cached; packers for longer arrays are created for each use."""

BY_REFERENCE_SIZE = 1024
"""Bytes fields above this size become separate buffers of an encoded message; smaller fields are copied."""

ELEMENTS_MAX = 1_000_000
"""The maximum number of nested messages in one message. An empty nested message takes 3 bytes on the
wire and 100 bytes in memory."""


class MalformedError(Exception):
    """The bytes are malformed. The codecs catch this error, add the position and raise DecodeError."""


def encode_unsigned_varint(value: int) -> bytes:
    """Return `value` encoded as an unsigned varint: base 128, low bits first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def unsigned_varint(value: int) -> bytes:
    """Return `value` encoded as an unsigned varint. Values below 256 come from a table."""
    return _SMALL_VARINTS[value] if value < 256 else encode_unsigned_varint(value)


_SMALL_VARINTS = tuple(encode_unsigned_varint(value) for value in range(256))


def rest_of_varint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte was above 127; return (value, position after the varint)."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedError("the varint has more than 32 bits")


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the unsigned varint at `position` and the position after the varint.

    Raises IndexError if the varint is truncated and MalformedError if it has more than 32 bits.
    """
    first = buffer[position]
    return (first, position + 1) if first < 128 else rest_of_varint(buffer, position + 1, first)


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Skip `count` tagged fields and return the position after them."""
    end = len(buffer)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > end:
            raise_short(size, end - position + size)
    return position


def skip_tagged_section(buffer: Buffer, position: int) -> int:
    """Skip the tagged fields of a struct, including their count, and return the position after them."""
    count, position = read_unsigned_varint(buffer, position)
    return skip_tagged_fields(buffer, position, count) if count else position


def raise_short(size: int, left: int) -> None:
    """Raise the error for a value that is longer than the rest of the message."""
    raise MalformedError(f"Error reading value of length {size}, only {max(left, 0)} bytes available")


def raise_null() -> None:
    """Raise the error for null in a field that is not nullable."""
    raise MalformedError("non-nullable field was serialized as null")


def raise_count(count: int, left: int) -> None:
    """Raise the error for an array with elements that need more bytes than the rest of the message has."""
    raise MalformedError(f"Error reading array of size {count}, only {left} bytes available")


def raise_elements() -> None:
    """Raise the error for a message with more than `ELEMENTS_MAX` nested messages."""
    raise MalformedError(f"the message contains more than {ELEMENTS_MAX} nested messages")


def raise_tag_size(read: int, size: int) -> None:
    """Raise the error for a known tagged field with a value that does not have the declared size."""
    raise MalformedError(f"Error reading tagged field of size {size}: its value has {read} bytes")


def raise_uuid(value: bytes) -> None:
    """Raise the error for a UUID that does not have 16 bytes."""
    raise ValueError(f"a UUID must have 16 bytes, not {len(value)}")


class _Writers(dict[int, Callable[..., bytes]]):
    """Maps an array length to the function that packs the length and that number of integers."""

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
