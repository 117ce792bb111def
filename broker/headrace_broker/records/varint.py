"""Zig-zag variable-length integers, as records use them."""

from __future__ import annotations

from collections.abc import Sequence


def encode_varint(value: int) -> bytes:
    """Return the zig-zag varint of a 64-bit signed integer."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def size_of_varint(value: int) -> int:
    """Return the number of bytes that `encode_varint(value)` has."""
    bits = ((value << 1) ^ (value >> 63)).bit_length()
    return max(1, (bits + 6) // 7)


def decode_varint(buffer: Sequence[int], position: int) -> tuple[int, int]:
    """Return (value, position after it). Raises ValueError when it is cut off or longer than ten bytes."""
    shift = 0
    raw = 0
    for index in range(position, min(position + 10, len(buffer))):
        byte = buffer[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), index + 1
        shift += 7
    raise ValueError(f"varint at byte {position} is cut off or too long")
