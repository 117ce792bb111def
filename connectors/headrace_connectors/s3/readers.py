"""Reads the records of objects: JSON lines, text lines, bytes with a separator, and Parquet. Objects may be compressed.

A reader returns lists of items with one schema. It reads lines in blocks, so its memory does not depend on the size of
the object. A Parquet object is first copied to a temporary file, because Parquet needs random access.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from headrace.api.errors import DataError
from headrace.data.headers import Headers
from headrace.data.schema import BYTES_SCHEMA, STRING_SCHEMA, Schema

_BLOCK_BYTES = 256 * 1024
_MEMORY_MAX = 32 * 1024 * 1024


class Body(Protocol):
    """The content of an object; see `headrace_connectors.s3.bucket.ObjectBody`."""

    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


class Items(NamedTuple):
    """Values with one schema."""

    schema: Schema | None
    values: list[Any]


class ItemReader(ABC):
    """Reads the items of one object: values, keys or headers."""

    @abstractmethod
    def read(self, count: int) -> Items:
        """Return `count` items, or fewer at the end of the object. Raises DataError if the object is invalid."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection and the temporary file."""

    def skip(self, count: int) -> None:
        """Skip the next `count` items."""
        while count:
            skipped = len(self.read(min(count, 10_000)).values)
            if not skipped:
                return
            count -= skipped


class LineReader(ItemReader):
    """Reads items that end with a separator. After the last item, the separator may be missing."""

    def __init__(
        self, body: Body, separator: bytes, schema: Schema | None, decode: Callable[[bytes], Any], compressed: bool
    ) -> None:
        self._body = body
        self._separator = separator
        self._schema = schema
        self._decode = decode
        self._gzip = zlib.decompressobj(31) if compressed else None
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._is_at_end = False
        self._number = 0

    def read(self, count: int) -> Items:
        """Return `count` decoded items, or fewer at the end of the object."""
        while len(self._lines) < count and not self._is_at_end:
            self._read_block()
        lines = [self._lines.popleft() for _ in range(min(count, len(self._lines)))]
        return Items(self._schema, [self._decoded(line) for line in lines])

    def skip(self, count: int) -> None:
        """Skip the next `count` items without decoding them."""
        while count:
            while not self._lines and not self._is_at_end:
                self._read_block()
            if not self._lines:
                return
            self._lines.popleft()
            self._number += 1
            count -= 1

    def _decoded(self, line: bytes) -> Any:
        self._number += 1
        try:
            return self._decode(line)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"line {self._number} is invalid: {error}") from error

    def _read_block(self) -> None:
        data = self._body.read(_BLOCK_BYTES)
        if not data:
            self._is_at_end = True
            if self._gzip is not None and not self._gzip.eof:
                raise DataError("the compressed data is truncated or is not gzip")
            if self._rest:
                self._lines.append(self._rest)
                self._rest = b""
            return
        if self._gzip is not None:
            data = self._decompress(data)
        *lines, self._rest = (self._rest + data).split(self._separator)
        self._lines.extend(lines)

    def _decompress(self, data: bytes) -> bytes:
        parts = []
        try:
            while data:
                assert self._gzip is not None
                if self._gzip.eof:  # the next member of the file
                    self._gzip = zlib.decompressobj(31)
                parts.append(self._gzip.decompress(data))
                data = self._gzip.unused_data
        except zlib.error as error:
            raise DataError(f"the compressed data is invalid: {error}") from error
        return b"".join(parts)

    def close(self) -> None:
        """Close the connection."""
        self._body.close()


class ParquetReader(ItemReader):
    """Reads the rows of a Parquet object."""

    def __init__(self, body: Body, copy: IO[bytes]) -> None:
        from headrace_connectors.common.parquet_rows import ParquetRows  # imports PyArrow, which is slow

        self._copy = copy
        while data := body.read(_BLOCK_BYTES):
            copy.write(data)
        body.close()
        self._rows = ParquetRows(copy)

    def read(self, count: int) -> Items:
        """Return `count` rows, or fewer at the end of the object."""
        return Items(self._rows.schema, self._rows.read(count))

    def close(self) -> None:
        """Remove the temporary file."""
        self._copy.close()


class Format(NamedTuple):
    """How the objects of a connector are read."""

    name: str
    """json, string, bytearray or parquet."""
    separator: bytes = b"\n"


def reader_for(body: Body, key: str, form: Format) -> ItemReader:
    """Return a reader for an object. An object with the extension .gz is decompressed. Raises DataError."""
    if form.name == "parquet":
        from tempfile import SpooledTemporaryFile

        return ParquetReader(body, SpooledTemporaryFile(_MEMORY_MAX, prefix="headrace-s3-"))
    compressed = key.endswith(".gz")
    if form.name == "json":
        return LineReader(body, b"\n", None, _decode_json, compressed)
    if form.name == "string":
        return LineReader(body, b"\n", STRING_SCHEMA, _decode_text, compressed)
    return LineReader(body, form.separator, BYTES_SCHEMA, bytes, compressed)


def format_of_side(key: str, form: Format) -> Format:
    """Return the format of a keys or headers object from its extension. It may differ from the format of the values."""
    plain = key.removesuffix(".gz")
    if plain.endswith(".parquet"):
        return Format("parquet")
    return Format("json") if plain.endswith(".json") else Format("bytearray", form.separator)


def headers_from(items: Items) -> list[Headers]:
    """Convert the JSON documents that the sink writes, lists of objects with key and value, to the records' headers."""
    found = []
    for item in items.values:
        if not isinstance(item, list):
            raise DataError(f"headers must be a JSON array of objects with key and value, found: {item!r:.100}")
        headers = Headers()
        for header in item:
            if not isinstance(header, dict) or not isinstance(header.get("key"), str):
                raise DataError(f"a header must be an object with key and value, found: {header!r:.100}")
            value = header.get("value")
            headers.add(header["key"], value, STRING_SCHEMA if isinstance(value, str) else None)
        found.append(headers)
    return found


_json = msgspec.json.Decoder()


def _decode_json(line: bytes) -> Any:
    return _json.decode(line)


def _decode_text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode()
