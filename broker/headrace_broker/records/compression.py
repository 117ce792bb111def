"""The four compression codecs of record batches, in the formats of the Java client, with bounded decompression.

The codecs are gzip, snappy with xerial framing in blocks of 32 KiB, lz4 frames with independent blocks (KIP-57), and
zstd. Raw snappy data can also be decompressed. Decompression fails if the records exceed a given size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_SIZE_BYTES_MAX = 256 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024
_INT32 = struct.Struct(">i")


class Compression(IntEnum):
    """The codecs, with their numbers in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """The bytes cannot be decompressed, or their decompressed size exceeds the limit."""


def _cramjam() -> Any:
    import cramjam

    return cramjam


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes | bytearray | memoryview:
    """Return `data` compressed with `codec`. If `level` is None, Kafka's default level is used."""
    return _COMPRESSORS[codec](data, level)


def decompress(codec: int, data: Buffer, size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX) -> Buffer:
    """Return the decompressed `data`. Raises CompressionError if `data` is invalid or the result is too large."""
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise CompressionError(f"compression codec {codec} is unknown")
    if codec and len(data) == 0:
        raise CompressionError(f"{Compression(codec).name.lower()}: the compressed data is empty")
    return decompressor(data, size_bytes_max)


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    # Level 1 is lz4's fast mode, which the Java client uses for its default level.
    compressor = _cramjam().lz4.Compressor(
        level=1 if level is None else level, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))  # cramjam accepts only bytes here
    return bytes(compressor.finish())


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(_cramjam().zstd.compress(data, level=3 if level is None else level))


def _decompress_gzip(data: Buffer, size_bytes_max: int) -> bytes:
    parts: list[bytes] = []
    remaining: Buffer = data
    size_bytes = 0
    while len(remaining):  # a gzip stream may have several members
        decompressor = zlib.decompressobj(31)
        try:
            part = decompressor.decompress(remaining, size_bytes_max - size_bytes + 1)
        except zlib.error as error:
            raise CompressionError(f"gzip: {error}") from None
        size_bytes += len(part)
        if size_bytes > size_bytes_max:
            raise _too_large_error("gzip", size_bytes_max)
        if not decompressor.eof:
            raise CompressionError("gzip: the stream is incomplete")
        parts.append(part)
        remaining = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: Buffer, size_bytes_max: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, size_bytes_max, 0)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    size_bytes = 0
    while position < len(view):
        if position + 4 > len(view):
            raise CompressionError("snappy: the data ends inside a block length")
        (block_size,) = _INT32.unpack_from(view, position)
        position += 4
        if block_size < 0 or position + block_size > len(view):
            raise CompressionError(
                f"snappy: a block length is {block_size} bytes, but only {len(view) - position} bytes are left"
            )
        parts.append(_decompress_snappy_block(view[position : position + block_size], size_bytes_max, size_bytes))
        size_bytes += len(parts[-1])
        position += block_size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, size_bytes_max: int, size_bytes_before: int) -> bytes:
    snappy = _cramjam().snappy
    try:
        if size_bytes_before + snappy.decompress_raw_len(block) > size_bytes_max:
            raise _too_large_error("snappy", size_bytes_max)
        return bytes(snappy.decompress_raw(block))
    except _cramjam().DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from None


def _decompress_lz4(data: Buffer, size_bytes_max: int) -> memoryview:
    return _decompress_into(_cramjam().lz4.decompress_into, "lz4", data, size_bytes_max)


def _decompress_zstd(data: Buffer, size_bytes_max: int) -> memoryview:
    return _decompress_into(_cramjam().zstd.decompress_into, "zstd", data, size_bytes_max)


_OUTPUT_IS_FULL = "failed to write whole buffer"


def _decompress_into(decompress_into: Callable[..., int], name: str, data: Buffer, size_bytes_max: int) -> memoryview:
    """Decompress `data` into a buffer that grows up to `size_bytes_max`; ignore the size that `data` declares."""
    capacity = min(max(8 * len(data), 64 * 1024), size_bytes_max)
    while True:
        output = bytearray(capacity)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except (_cramjam().DecompressionError, OSError, ValueError) as error:
            if _OUTPUT_IS_FULL not in str(error):
                raise CompressionError(f"{name}: {error}") from None
        if capacity >= size_bytes_max:
            raise _too_large_error(name, size_bytes_max)
        capacity = min(capacity * 4, size_bytes_max)


def _too_large_error(name: str, size_bytes_max: int) -> CompressionError:
    return CompressionError(f"{name}: the decompressed records exceed {size_bytes_max} bytes")


_COMPRESSORS: dict[int, Callable[[Buffer, int | None], Buffer]] = {
    Compression.NONE: lambda data, level: data,
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: dict[int, Callable[[Buffer, int], Buffer]] = {
    Compression.NONE: lambda data, limit: data,
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: _decompress_zstd,
}
