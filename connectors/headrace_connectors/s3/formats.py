"""Formats of objects: JSON lines, bytes and Parquet. The same records always become the same bytes.

A format encodes values and appends them to a spool. A row group of Parquet always has the same number of rows, and gzip
data contains no time, so an object does not depend on the batches in which its records arrived.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from headrace.api.errors import DataError, RecordErrors
from headrace.data.json_encoding import encode_list
from headrace.data.json_values import EncodingOptions
from headrace.data.schema import Schema
from headrace.data.value_text import convert_to_string
from headrace_connectors.common.null_replacement import replaces_null_with_default
from headrace_connectors.s3.sink_config import S3SinkConfig, format_name
from headrace_connectors.s3.spool import Spool

Encode = Callable[[Schema | None, Sequence[Any]], Sequence[Any]]
"""Returns each value in the form that a file's `append` accepts. Raises RecordErrors with all rejected values."""


class FileFormat(ABC):
    """Writes one file in one format."""

    @abstractmethod
    def append(self, schema: Schema | None, encoded: Sequence[Any]) -> None:
        """Append encoded values to the file."""

    @abstractmethod
    def finish(self) -> None:
        """Append the data that ends the file, such as a footer."""

    def discard(self) -> None:  # noqa: B027 - most formats hold no data outside the spool
        """Discard the data that has not been written to the file yet."""


class _Stream:
    """Appends data to a spool, compressed if configured."""

    def __init__(self, spool: Spool, config: S3SinkConfig) -> None:
        self._append = spool.append
        compresses = config.compression_type.lower() == "gzip"
        self._gzip = zlib.compressobj(config.compression_level, zlib.DEFLATED, 31) if compresses else None

    def write(self, data: bytes) -> None:
        self._append(data if self._gzip is None else self._gzip.compress(data))

    def finish(self) -> None:
        if self._gzip is not None:
            self._append(self._gzip.flush())


class _Lines(FileFormat):
    """Writes each value and a separator after it."""

    def __init__(self, spool: Spool, config: S3SinkConfig, separator: bytes) -> None:
        self._stream = _Stream(spool, config)
        self._separator = separator

    def append(self, schema: Schema | None, encoded: Sequence[bytes]) -> None:
        """Append encoded values, each followed by the separator."""
        self._stream.write(self._separator.join([*encoded, b""]))

    def finish(self) -> None:
        """Append the end of the compressed data."""
        self._stream.finish()


def _encode_bytes(values: Sequence[Any], separator: bytes, converter: str) -> Sequence[bytes]:
    """Return the values as bytes. A value that contains the separator is an error, unless the separator is empty.

    `converter` is the key of the converter that creates the values, for error messages.
    """
    errors: dict[int, Exception] = {}
    for index, value in enumerate(values):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            errors[index] = DataError(
                f"ByteArrayFormat needs values of type BYTES, found: {type(value).__name__}; set {converter} to "
                "ByteArrayConverter"
            )
        elif separator and separator in bytes(value):
            errors[index] = DataError(
                f"The record contains format.bytearray.separator ({separator!r}), so the S3 source could not assign "
                "the stored keys or headers to records. Set a separator that the records do not contain"
            )
    if errors:
        raise RecordErrors(errors)
    return [bytes(value) for value in values]


def _bytes_separator(config: S3SinkConfig) -> bytes:
    """Return the bytes after each record of ByteArrayFormat."""
    text = config.bytes_separator
    return b"\n" if text is None else text.encode("ascii", "backslashreplace").decode("unicode_escape").encode()


def encoder_for(class_name: str, config: S3SinkConfig, converter: str = "value.converter") -> Encode:
    """Return the function that encodes values for the format `class_name`.

    `converter` is the key of the converter that creates the values, for error messages.
    """
    name = format_name(class_name)
    if name == "bytearray":
        # Without keys and headers, such records are written for other programs, as by Confluent's sink.
        rejected = _bytes_separator(config) if config.store_keys or config.store_headers else b""
        return lambda schema, values: _encode_bytes(values, rejected, converter)
    replaces_null = replaces_null_with_default(config, converter)
    if name == "parquet":
        from headrace_connectors.s3.parquet import encode_rows  # imports PyArrow, which is slow

        return lambda schema, values: encode_rows(schema, values, replaces_null)
    options = EncodingOptions(config.json_decimal_format.upper() == "NUMERIC", replaces_null)
    return lambda schema, values: encode_list(schema, list(values), options)


def format_for(class_name: str, spool: Spool, config: S3SinkConfig) -> FileFormat:
    """Return a `FileFormat` that writes a new file to `spool`."""
    name = format_name(class_name)
    if name == "parquet":
        from headrace_connectors.s3.parquet import ParquetFormat  # imports PyArrow, which is slow

        return ParquetFormat(spool, config)
    return _Lines(spool, config, _bytes_separator(config) if name == "bytearray" else b"\n")


_PARQUET_PREFIXES: dict[str, str] = {"none": "", "gzip": ".gz"}


def extension_of(class_name: str, config: S3SinkConfig) -> str:
    """Return the file name extension for a format, which is the same as in Confluent's sink."""
    name = format_name(class_name)
    if name == "parquet":
        codec = config.parquet_codec.lower()
        return _PARQUET_PREFIXES.get(codec, f".{codec}") + ".parquet"
    extension = config.bytes_extension if name == "bytearray" else ".json"
    return extension + (".gz" if config.compression_type.lower() == "gzip" else "")


def header_items(headers: Any) -> list[dict[str, Any]]:
    """Return headers as documents whose values are strings, as Confluent's sink writes them."""
    return [
        {"key": each.key, "value": None if each.value is None else convert_to_string(each.value, each.schema)}
        for each in headers
    ]
