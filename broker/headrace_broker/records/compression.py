"""The four compression codecs of record batches, in the formats of the Java client, with bounded decompression.

The codecs are gzip, snappy with xerial framing in blocks of 32 KiB, lz4 frames with independent blocks (KIP-57), and
zstd. Raw snappy data can also be decompressed. Decompression fails if the records exceed a given size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, cast

Buffer = bytes | bytearray | memoryview

DECOMPRESSED_SIZE_BYTES_MAX = 256 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024
_SNAPPY_RATIO_MAX = 32
"""More than snappy's best compression ratio: a copy of 64 bytes takes at least 3 bytes."""
_INT32 = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_SIZE_MIN = 7
_LZ4_INDEPENDENT_BLOCKS, _LZ4_BLOCK_CHECKSUMS, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04
_LZ4_BLOCK_SIZE_MASK = 0x7FFFFFFF


class Compression(IntEnum):
    """The codecs, with their numbers in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """The bytes cannot be decompressed, or their decompressed size exceeds the limit."""


class OutputFullError(CompressionError):
    """The decompressed data is larger than the output buffer."""


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


def decompress_into(codec: int, data: Buffer, output: bytearray | memoryview, *, snappy_blocks_max: int) -> int:
    """Decompress `data` into `output`, and return the decompressed size.

    Raises OutputFullError if `output` is too small or if snappy data has more than `snappy_blocks_max` blocks, and
    CompressionError if `data` is invalid. If `data` is invalid but its decompressed size up to the error exceeds
    `output`, this function raises OutputFullError.
    """
    if codec != Compression.SNAPPY:
        return _decompress_into(streaming_decompressor(codec), Compression(codec).name.lower(), data, output)
    view = memoryview(output)
    size_bytes = 0
    for number, block in enumerate(iter_snappy_blocks(data), 1):
        block_bytes = snappy_block_size(block)
        if number > snappy_blocks_max or size_bytes + block_bytes > len(view):
            raise OutputFullError("snappy: the decompressed data is larger than the output buffer")
        _decompress_into(_cramjam().snappy.decompress_raw_into, "snappy", block, view[size_bytes:])
        size_bytes += block_bytes
    return size_bytes


def check_lz4_frame(data: Buffer) -> None:
    """Check that `data` is one lz4 frame that Kafka's Java consumer can read. Raises CompressionError.

    The consumer reads only the first frame, and only independent blocks. It does not skip frames.
    """
    view = memoryview(data)
    if len(view) < _LZ4_HEADER_SIZE_MIN or view[:4] != _LZ4_MAGIC:
        raise CompressionError("lz4: the data does not begin with an lz4 frame")
    flags = view[4]
    if not flags & _LZ4_INDEPENDENT_BLOCKS:
        raise CompressionError("lz4: the blocks of the frame depend on each other, which Kafka's format does not allow")
    position = _LZ4_HEADER_SIZE_MIN + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_size = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
    while position + 4 <= len(view):
        (size,) = _UINT32_LE.unpack_from(view, position)
        position += 4
        if not size:
            position += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
            if position < len(view):
                raise CompressionError(f"lz4: {len(view) - position} bytes follow the first frame")
            break
        position += (size & _LZ4_BLOCK_SIZE_MASK) + checksum_size
    if position != len(view):
        raise CompressionError("lz4: the frame is incomplete")


def streaming_decompressor(codec: int) -> Callable[[Buffer, Any], int]:
    """Return cramjam's function `decompress_into(data, output)` for gzip, lz4 or zstd.

    `output` is a buffer or a `cramjam.File`. The function writes the data in small pieces and releases the GIL.
    """
    module = getattr(_cramjam(), Compression(codec).name.lower())
    return cast("Callable[[Buffer, Any], int]", module.decompress_into)


def iter_snappy_blocks(data: Buffer) -> Iterator[memoryview]:
    """Yield the compressed blocks of snappy data with xerial framing. Raw snappy data is a single block.

    Raises CompressionError if the framing is invalid.
    """
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        yield view
        return
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise CompressionError("snappy: the data ends inside a block length")
        (block_size,) = _INT32.unpack_from(view, position)
        position += 4
        if block_size < 0 or position + block_size > len(view):
            raise CompressionError(
                f"snappy: a block length is {block_size} bytes, but only {len(view) - position} bytes are left"
            )
        yield view[position : position + block_size]
        position += block_size


def snappy_block_size(block: memoryview) -> int:
    """Return the decompressed size of a snappy block, as the block declares it. Raises CompressionError.

    The block cannot declare a size that snappy's compression ratio makes impossible.
    """
    try:
        size_bytes: int = _cramjam().snappy.decompress_raw_len(block)
    except _cramjam().DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from None
    if size_bytes > _SNAPPY_RATIO_MAX * len(block):
        raise CompressionError(f"snappy: a block of {len(block)} bytes declares {size_bytes} decompressed bytes")
    return size_bytes


def decompress_snappy_block(block: memoryview) -> bytes:
    """Return the decompressed block. Raises CompressionError."""
    try:
        return bytes(_cramjam().snappy.decompress_raw(block, snappy_block_size(block)))
    except _cramjam().DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from None


def _decompress_snappy(data: Buffer, size_bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    for block in iter_snappy_blocks(data):
        size_bytes += snappy_block_size(block)
        if size_bytes > size_bytes_max:
            raise _too_large_error("snappy", size_bytes_max)
        parts.append(decompress_snappy_block(block))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_lz4(data: Buffer, size_bytes_max: int) -> memoryview:
    return _decompress_growing(_cramjam().lz4.decompress_into, "lz4", data, size_bytes_max)


def _decompress_zstd(data: Buffer, size_bytes_max: int) -> memoryview:
    return _decompress_growing(_cramjam().zstd.decompress_into, "zstd", data, size_bytes_max)


_OUTPUT_IS_FULL = "failed to write whole buffer"


def _decompress_growing(
    decompress_into: Callable[..., int], name: str, data: Buffer, size_bytes_max: int
) -> memoryview:
    """Decompress `data` into a buffer that grows up to `size_bytes_max`; ignore the size that `data` declares."""
    capacity = min(max(8 * len(data), 64 * 1024), size_bytes_max)
    while True:
        output = bytearray(capacity)
        try:
            return memoryview(output)[: _decompress_into(decompress_into, name, data, output)]
        except OutputFullError:
            if capacity >= size_bytes_max:
                raise _too_large_error(name, size_bytes_max) from None
        capacity = min(capacity * 4, size_bytes_max)


def _decompress_into(
    decompress_into: Callable[..., int], name: str, data: Buffer, output: bytearray | memoryview
) -> int:
    try:
        return decompress_into(data, output)
    except (_cramjam().DecompressionError, OSError, ValueError) as error:
        if _OUTPUT_IS_FULL in str(error):
            raise OutputFullError(f"{name}: the decompressed data is larger than the output buffer") from None
        raise CompressionError(f"{name}: {error}") from None


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
