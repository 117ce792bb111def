"""Reads the records of objects: JSON lines, text lines, bytes with a separator, and Parquet. Objects may be compressed.

A reader returns lists of items with one schema. It reads lines in blocks, so its memory does not depend on the size of
the object. A Parquet object is first copied to a temporary file, because Parquet needs random access.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from headrace.api.errors import DataError
from headrace.data.headers import Headers
from headrace.data.schema import BYTES_SCHEMA, STRING_SCHEMA, Schema
from headrace_connectors.common.gzip_reader import GzipReader

_BLOCK_BYTES = 256 * 1024
_MEMORY_MAX = 32 * 1024 * 1024


class Body(Protocol):
    """The content of an object. See `headrace_connectors.s3.bucket.ObjectBody`."""

    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


class Items(NamedTuple):
    """Values with one schema."""

    schema: Schema | None
    values: list[Any]


class ItemReader(ABC):
    """Reads the items of one object: record values, record keys or record headers.

    The values, keys and headers of the same records have separate readers. The method `prepare` reads items in advance.
    The task can then take the same number of items from each reader.
    """

    schema: Schema | None = None

    def __init__(self, convert: Callable[[Any], Any] | None = None) -> None:
        """`convert` is called for each item. It raises DataError for an invalid item."""
        self._convert = convert
        self._prepared: list[Any] = []
        self._error: DataError | None = None

    def prepare(self, count: int) -> int:
        """Read `count` items in advance, or fewer at the end or before invalid data. Return the number of items."""
        while len(self._prepared) < count and self._error is None and not self._is_exhausted():
            items = self._items(count - len(self._prepared))
            try:
                self._prepared.extend(items if self._convert is None else map(self._convert, items))
            except DataError as error:
                self._error = error
        return min(count, len(self._prepared))

    def take(self, count: int) -> Items:
        """Return the next `count` items. The caller must have prepared these items with `prepare`."""
        taken, self._prepared = self._prepared[:count], self._prepared[count:]
        return Items(self.schema, taken)

    def ends_after(self, count: int) -> bool:
        """Whether the object ends after the next `count` items. The caller must have prepared these items."""
        return len(self._prepared) == count and self._error is None and self._is_exhausted()

    def raise_error(self) -> None:
        """If the item after the prepared items is invalid, raise its DataError."""
        if self._error is not None:
            raise self._error

    @abstractmethod
    def skip(self, count: int) -> int:
        """Skip up to `count` items at the beginning. Return the number of skipped items. Raises DataError."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection and the temporary file."""

    @abstractmethod
    def _items(self, count: int) -> Iterator[Any]:
        """Yield up to `count` items. Raises DataError for an invalid item. The items after it cannot be read."""

    @abstractmethod
    def _is_exhausted(self) -> bool:
        """Whether all items were read."""


class LineReader(ItemReader):
    """Reads items that end with a separator. After the last item, the separator may be missing."""

    def __init__(
        self,
        body: Body,
        form: Format,
        schema: Schema | None,
        decode: Callable[[bytes], Any],
        *,
        is_gzip: bool,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(convert)
        self.schema = schema
        self._body = body
        self._stream: Body | GzipReader = GzipReader(body.read) if is_gzip else body
        self._is_json = form.name == "json"
        """Whether empty lines, and a byte order mark at the beginning, are ignored."""
        self._separator = form.separator
        self._limit = form.record_max_bytes
        self._decode = decode
        self._rest = bytearray()
        self._lines: deque[bytes] = deque()
        self._is_at_start = True
        self._is_at_end = False
        self._number = 0

    def skip(self, count: int) -> int:
        """Skip up to `count` items without decoding them."""
        skipped = 0
        while skipped < count and (lines := self._next_lines(count - skipped)):
            self._number += len(lines)
            skipped += sum(1 for line in lines if line.strip()) if self._is_json else len(lines)
        return skipped

    def _items(self, count: int) -> Iterator[Any]:
        decode, limit = self._decode, self._limit
        for line in self._next_lines(count):
            self._number += 1
            if len(line) > limit:
                raise self._too_long(self._number)
            try:
                item = decode(line)
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                if self._is_json and not line.strip():
                    continue
                raise DataError(f"line {self._number} is invalid: {error}") from error
            yield item

    def _is_exhausted(self) -> bool:
        return self._is_at_end and not self._lines

    def _next_lines(self, count: int) -> list[bytes]:
        """Return between 1 and `count` lines, or an empty list at the end. Raises DataError if the data is damaged."""
        while not self._lines and not self._is_at_end:
            self._read_block()
        return [self._lines.popleft() for _ in range(min(count, len(self._lines)))]

    def _read_block(self) -> None:
        if len(self._rest) > self._limit:
            raise self._too_long(self._number + 1)
        data = self._stream.read(_BLOCK_BYTES)
        if not data:
            self._is_at_end = True
            if self._rest:
                self._lines.append(bytes(self._rest))
                self._rest.clear()
            return
        if self._is_at_start:
            self._is_at_start = False
            data = data.removeprefix(codecs.BOM_UTF8) if self._is_json else data
        searched = max(0, len(self._rest) - len(self._separator) + 1)
        self._rest += data  # append in place: a copy for each block would take quadratic time
        if self._rest.find(self._separator, searched) >= 0:
            *lines, rest = bytes(self._rest).split(self._separator)
            self._lines.extend(lines)
            self._rest = bytearray(rest)

    def _too_long(self, number: int) -> DataError:
        return DataError(
            f"record {number} has more than record.max.bytes={self._limit} bytes. Either its separator is missing, or "
            "record.max.bytes must be increased"
        )

    def close(self) -> None:
        """Close the connection."""
        self._body.close()


class ParquetReader(ItemReader):
    """Reads the rows of a Parquet object."""

    def __init__(self, body: Body, copy: IO[bytes], convert: Callable[[Any], Any] | None = None) -> None:
        """Copy the object to the file `copy`. Raises DataError if the schema of the object cannot be read.

        `convert` is called for each row.
        """
        from headrace_connectors.common.parquet_rows import ParquetRows  # imports PyArrow, which is slow

        super().__init__(convert)
        self._copy = copy
        try:
            while data := body.read(_BLOCK_BYTES):
                copy.write(data)
            self._rows = ParquetRows(copy)
        except BaseException:
            copy.close()
            raise
        finally:
            body.close()
        self.schema = self._rows.schema

    def skip(self, count: int) -> int:
        """Skip up to `count` rows. Row groups that contain only skipped rows are not read."""
        count = min(count, self._rows.count)
        self._rows.skip(count)
        return count

    def _items(self, count: int) -> Iterator[Any]:
        yield from self._rows.read(count)

    def _is_exhausted(self) -> bool:
        return self._rows.is_at_end

    def close(self) -> None:
        """Remove the temporary file."""
        self._copy.close()


class Format(NamedTuple):
    """The format of the objects that a connector reads."""

    name: str
    """json, string, bytearray or parquet."""
    separator: bytes
    """The bytes after each record; not for parquet."""
    record_max_bytes: int


def object_format(name: str, bytes_separator: bytes, record_max_bytes: int) -> Format:
    """Return the format with this name. `bytes_separator` separates the records of the format bytearray."""
    return Format(name, bytes_separator if name == "bytearray" else b"\n", record_max_bytes)


def reader_for(body: Body, key: str, form: Format, convert: Callable[[Any], Any] | None = None) -> ItemReader:
    """Return a reader for the object with this key, whose content is `body`. Raises DataError.

    An object with the extension .gz is decompressed. `convert` is called for each item.
    """
    if form.name == "parquet":
        from tempfile import SpooledTemporaryFile

        return ParquetReader(body, SpooledTemporaryFile(_MEMORY_MAX, prefix="headrace-s3-"), convert)
    schema, decode = _DECODERS[form.name]
    return LineReader(body, form, schema, decode, is_gzip=key.endswith(".gz"), convert=convert)


def side_format_name(key: str) -> str:
    """Return the format of an object that contains record keys or record headers.

    `key` is the S3 key of the object. The extension of the S3 key determines the format.
    """
    plain = key.removesuffix(".gz")
    if plain.endswith(".parquet"):
        return "parquet"
    return "json" if plain.endswith(".json") else "bytearray"


def headers_of(item: Any) -> Headers:
    """Convert a JSON list of objects with key and value, as the sink writes it, to a record's headers."""
    if not isinstance(item, list):
        raise DataError(f"headers must be a JSON array of objects with key and value, found: {item!r:.100}")
    headers = Headers()
    for header in item:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise DataError(f"a header must be an object with key and value, found: {header!r:.100}")
        value = header.get("value")
        headers.add(header["key"], value, STRING_SCHEMA if isinstance(value, str) else None)
    return headers


def _decode_text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode()


_DECODERS: dict[str, tuple[Schema | None, Callable[[bytes], Any]]] = {
    "json": (None, msgspec.json.Decoder().decode),
    "string": (STRING_SCHEMA, _decode_text),
    "bytearray": (BYTES_SCHEMA, bytes),
}
