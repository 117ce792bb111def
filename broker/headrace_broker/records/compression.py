"""The four codecs of a record batch, framed as Java writes and reads them, with bounded decompression.

gzip; snappy in xerial's block framing (32 KiB blocks; raw snappy is read too); lz4 frames with independent blocks
(KIP-57); zstd. A batch that unpacks to more than the given limit is refused instead of filling memory.
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
    """Codec numbers as in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """Bytes that the codec cannot unpack, or that unpack to more than the limit."""


def _cramjam() -> Any:
    import cramjam

    return cramjam


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes | bytearray | memoryview:
    """Return `data` packed with `codec`; `level` None = Kafka's default for the codec."""
    return _COMPRESSORS[codec](data, level)


def decompress(codec: int, data: Buffer, size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX) -> Buffer:
    """Return `data` unpacked. Raises CompressionError when broken or larger than `size_bytes_max`."""
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise CompressionError(f"compression codec {codec} is unknown")
    if codec and len(data) == 0:
        raise CompressionError(f"{Compression(codec).name.lower()}: there is nothing to unpack")
    return decompressor(data, size_bytes_max)


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    # Level 1 is lz4's fast mode, which is what Java uses for its default level.
    packer = _cramjam().lz4.Compressor(level=1 if level is None else level, content_checksum=False, block_linked=False)
    packer.compress(bytes(data))  # it takes nothing else
    return bytes(packer.finish())


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(_cramjam().zstd.compress(data, level=3 if level is None else level))


def _decompress_gzip(data: Buffer, size_bytes_max: int) -> bytes:
    parts: list[bytes] = []
    rest: Buffer = data
    size_bytes = 0
    while len(rest):  # members may follow one another
        unpacker = zlib.decompressobj(31)
        try:
            part = unpacker.decompress(rest, size_bytes_max - size_bytes + 1)
        except zlib.error as error:
            raise CompressionError(f"gzip: {error}") from None
        size_bytes += len(part)
        if size_bytes > size_bytes_max:
            raise _too_large("gzip", size_bytes_max)
        if not unpacker.eof:
            raise CompressionError("gzip: the stream is cut off")
        parts.append(part)
        rest = unpacker.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: Buffer, size_bytes_max: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _unpack_snappy_block(view, size_bytes_max, 0)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    size_bytes = 0
    while position < len(view):
        if position + 4 > len(view):
            raise CompressionError("snappy: a block length is cut off")
        (block_size,) = _INT32.unpack_from(view, position)
        position += 4
        if block_size < 0 or position + block_size > len(view):
            raise CompressionError(f"snappy: block of {block_size} bytes where {len(view) - position} are left")
        parts.append(_unpack_snappy_block(view[position : position + block_size], size_bytes_max, size_bytes))
        size_bytes += len(parts[-1])
        position += block_size
    return b"".join(parts)


def _unpack_snappy_block(block: memoryview, size_bytes_max: int, size_bytes_before: int) -> bytes:
    snappy = _cramjam().snappy
    try:
        if size_bytes_before + snappy.decompress_raw_len(block) > size_bytes_max:
            raise _too_large("snappy", size_bytes_max)
        return bytes(snappy.decompress_raw(block))
    except _cramjam().DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from None


def _decompress_lz4(data: Buffer, size_bytes_max: int) -> memoryview:
    return _unpack_into(_cramjam().lz4.decompress_into, "lz4", data, size_bytes_max)


def _decompress_zstd(data: Buffer, size_bytes_max: int) -> memoryview:
    return _unpack_into(_cramjam().zstd.decompress_into, "zstd", data, size_bytes_max)


_OUTPUT_IS_FULL = "failed to write whole buffer"


def _unpack_into(unpack: Callable[..., int], name: str, data: Buffer, size_bytes_max: int) -> memoryview:
    """Unpack into a buffer that grows with need, so that a bomb costs its limit and not its promise."""
    room = min(max(8 * len(data), 64 * 1024), size_bytes_max)
    while True:
        output = bytearray(room)
        try:
            return memoryview(output)[: unpack(data, output)]
        except (_cramjam().DecompressionError, OSError, ValueError) as error:
            if _OUTPUT_IS_FULL not in str(error):
                raise CompressionError(f"{name}: {error}") from None
        if room >= size_bytes_max:
            raise _too_large(name, size_bytes_max)
        room = min(room * 4, size_bytes_max)


def _too_large(name: str, size_bytes_max: int) -> CompressionError:
    return CompressionError(f"{name}: the records unpack to more than {size_bytes_max} bytes")


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
