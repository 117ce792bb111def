"""Encodes and decodes the zig-zag variable-length integers of the record format."""

from __future__ import annotations

from collections.abc import Sequence


def encode_varint(value: int) -> bytes:
    """Return the zig-zag varint of a 64-bit signed integer."""
    remaining = (value << 1) ^ (value >> 63)
    if remaining < 0x80:
        return bytes((remaining,))
    encoded = bytearray()
    while remaining >= 0x80:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def size_of_varint(value: int) -> int:
    """Return the length in bytes of `encode_varint(value)`."""
    bits = ((value << 1) ^ (value >> 63)).bit_length()
    return max(1, (bits + 6) // 7)


def decode_varint(buffer: Sequence[int], position: int) -> tuple[int, int]:
    """Return (value, index of the next byte). Raises ValueError if the varint is incomplete or over ten bytes long."""
    shift = 0
    raw = 0
    for index in range(position, min(position + 10, len(buffer))):
        byte = buffer[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), index + 1
        shift += 7
    raise ValueError(f"the varint at byte {position} is incomplete or longer than ten bytes")
