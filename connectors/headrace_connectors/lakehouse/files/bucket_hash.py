"""Iceberg's bucket hash: Murmur3 (x86, 32 bits, seed 0), computed for whole columns with NumPy.

Specification: Iceberg's table specification, appendix B. This module does no I/O.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)

_FEW_ROWS = 64
"""For fewer values, a loop over the words of each value is faster than one over the words of all values."""
_LOOP_BYTES = 1 << 18

UInt32Array = npt.NDArray[np.uint32]


def hash_integers(values: npt.NDArray[Any]) -> UInt32Array:
    """Return the hashes of integers, dates (days) and timestamps (microseconds): each is hashed as 8 bytes."""
    words = np.ascontiguousarray(values, dtype="<i8").view("<u4").reshape(-1, 2).astype(np.uint32, copy=False)
    hashes = np.zeros(len(words), np.uint32)
    for index in range(2):
        hashes = _mix(hashes, _scramble(words[:, index]))
    return _finish(hashes, np.uint32(8))


def hash_binary(array: pa.Array) -> UInt32Array:
    """Return the hashes of strings (UTF-8) or binary values. The hash of null is any number."""
    array = array.cast(pa.large_binary() if not pa.types.is_string(array.type) else pa.large_string())
    offsets = np.frombuffer(array.buffers()[1], "<i8")[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    # Three bytes of padding, so that the last value can be read as whole words.
    content = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(3, np.uint8)])
    return _hash_bytes(content, offsets[:-1], np.diff(offsets))


def hash_decimals(array: pa.Array) -> UInt32Array:
    """Return the hashes of decimals: the minimum number of bytes of the unscaled value, big-endian."""
    little_endian = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)[
        array.offset : array.offset + len(array)
    ]
    big_endian = np.ascontiguousarray(little_endian[:, ::-1])
    sign = np.where(big_endian[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte is redundant if it only repeats the sign, which the next byte's highest bit repeats too.
    redundant = (big_endian[:, :-1] == sign) & ((big_endian[:, 1:] & 0x80) == (sign & 0x80))
    leading = np.logical_and.accumulate(redundant, axis=1).sum(axis=1)
    starts = np.arange(len(array), dtype=np.int64) * 16 + leading
    content = np.concatenate([big_endian.reshape(-1), np.zeros(3, np.uint8)])
    return _hash_bytes(content, starts, 16 - leading)


def _hash_bytes(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> UInt32Array:
    """Hash one slice of `content` for each value, four bytes of all values at a time."""
    hashes = np.zeros(len(starts), np.uint32)
    rows: npt.NDArray[Any] = np.flatnonzero(lengths >= 4)
    position = 0
    while rows.size >= _FEW_ROWS:
        word = _scramble(_word(content, starts[rows] + position))
        hashes[rows] = _mix(hashes[rows], word)
        position += 4
        rows = rows[lengths[rows] >= position + 4]
    for row in rows.tolist():
        start, end = int(starts[row]) + position, int(starts[row] + lengths[row] // 4 * 4)
        for first in range(start, end, _LOOP_BYTES):
            hashes[row] = _mix_words(int(hashes[row]), content[first : min(first + _LOOP_BYTES, end)])
    tails = np.flatnonzero(lengths % 4)
    if tails.size:
        size = (lengths[tails] % 4).astype(np.uint32)
        word = _word(content, starts[tails] + lengths[tails] // 4 * 4)
        hashes[tails] ^= _scramble(word & ((np.uint32(1) << (size * np.uint32(8))) - np.uint32(1)))
    return _finish(hashes, lengths.astype(np.uint32))


def _mix_words(value: int, content: npt.NDArray[np.uint8]) -> int:
    """Mix all words of one value. The next hash depends on the previous one, so NumPy cannot do it at once."""
    for word in _scramble(np.frombuffer(content.tobytes(), "<u4").astype(np.uint32)).tolist():
        value ^= word
        value = (((value << 13 | value >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return value


def _word(content: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> UInt32Array:
    word = content[at].astype(np.uint32)
    for index in range(1, 4):
        word |= content[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def _scramble(word: UInt32Array) -> UInt32Array:
    word = word * _C1
    return ((word << np.uint32(15)) | (word >> np.uint32(17))) * _C2


def _mix(hashes: UInt32Array, word: UInt32Array) -> UInt32Array:
    hashes = hashes ^ word
    hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    return hashes * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: UInt32Array, length: UInt32Array | np.uint32) -> UInt32Array:
    hashes = hashes ^ length
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
