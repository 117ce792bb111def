"""Readers of the file formats that the directory source supports: lines, JSON lines, CSV and Parquet.

A reader returns lists of values with the same schema, and keeps the position after the returned values. If a record is
invalid, a reader first returns the records before it. The next call raises BadRecordError, and the call after that
continues after the invalid record.
"""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.api.errors import DataError
from headrace.data.columns import Lines, Values
from headrace.data.schema import STRING_SCHEMA, Schema, struct
from headrace_connectors.file.csv_columns import Column, parse_columns, text_columns, with_nulls
from headrace_connectors.file.directory_source_config import DirectorySourceConfig, character
from headrace_connectors.file.record_lines import FileError, LineTooLongError, RecordLines, TemporaryFileError

csv.field_size_limit(sys.maxsize)  # record.max.bytes limits the size of a record

_BOM = b"\xef\xbb\xbf"


class BadRecordError(DataError):
    """A record is invalid. `line` is the number of its line, or of its row in a Parquet file, counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(reason)


class RecordReader(ABC):
    """Reads the records of one file."""

    schema: Schema | None = None
    unit = "line"

    @abstractmethod
    def read(self, count: int) -> Values:
        """Return at most `count` values. The result may have fewer values even before the end of the file.

        The result is empty only at the end of the file.

        Raises BadRecordError if the next record is invalid, and then skips this record. Raises FileError if the file
        is damaged.
        """

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether all records of the file have been read."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of bytes, or of rows in a Parquet file, before the next record."""

    @property
    @abstractmethod
    def line(self) -> int:
        """The number of lines, or of rows in a Parquet file, before the next record."""


class _TextReader(RecordReader):
    """The base class of the readers of text formats."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines

    @property
    def is_at_end(self) -> bool:
        return self._lines.is_at_end

    @property
    def position(self) -> int:
        return self._lines.position

    @property
    def line(self) -> int:
        return self._lines.line

    def _take(self, count: int) -> list[bytes]:
        first, line = self._lines.position == 0, self._lines.line
        try:
            lines = self._lines.take(count)
        except LineTooLongError as error:
            self._lines.skip_long_line()
            raise BadRecordError(line + 1, str(error)) from error
        if first and lines and lines[0].startswith(_BOM):
            lines[0] = lines[0][len(_BOM) :]  # `push_back` is not used for the first line, so the bytes stay counted
        return lines

    def _raise_bad(self, lines: list[bytes], index: int, reason: str) -> None:
        """Raise BadRecordError for the line at this index. The next `read` continues after the line."""
        self._lines.push_back(lines[index + 1 :])
        raise BadRecordError(self._lines.line, reason)


class LinesReader(_TextReader):
    """Reads a text file in which each line is a record with a string as value."""

    schema = STRING_SCHEMA

    def __init__(self, lines: RecordLines, encoding: str) -> None:
        super().__init__(lines)
        self._encoding = encoding

    def read(self, count: int) -> Values:
        """Return the next lines as strings, at most `count`."""
        lines = self._take(count)
        if not lines:
            return []
        joined = b"\n".join(lines)
        if b"\r" in joined:
            joined = b"\n".join([line.removesuffix(b"\r") for line in lines])
        try:
            return Lines(joined.decode(self._encoding), len(lines))
        except UnicodeDecodeError:
            return self._until_bad(lines)

    def _until_bad(self, lines: list[bytes]) -> Values:
        values: list[Any] = []
        for index, line in enumerate(lines):
            try:
                values.append(line.removesuffix(b"\r").decode(self._encoding))
            except UnicodeDecodeError as error:
                if values:
                    self._lines.push_back(lines[index:])
                    return values
                self._raise_bad(lines, index, _encoding_text(error))
        return values


class JsonReader(_TextReader):
    """Reads a text file in which each line is a JSON document. Empty lines are skipped."""

    def __init__(self, lines: RecordLines) -> None:
        super().__init__(lines)
        self._decoder = msgspec.json.Decoder()

    def read(self, count: int) -> Values:
        """Return the values of the next JSON documents, at most `count`."""
        while lines := self._take(count):
            values = self._decode_all(lines)
            if len(values) != len(lines):  # an invalid or empty line
                values = self._until_bad(lines)
            if values:
                return values
        return []

    def _decode_all(self, lines: list[bytes]) -> list[Any]:
        try:
            return list(map(self._decoder.decode, lines))  # `decode_lines` accepts several documents in one line
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    def _until_bad(self, lines: list[bytes]) -> list[Any]:
        values: list[Any] = []
        for index, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                values.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if values:
                    self._lines.push_back(lines[index:])
                    return values
                self._raise_bad(lines, index, f"not a JSON document: {error}")
        return values


class _CsvLines(Iterator[str]):
    """An iterator of a CSV file's decoded lines, from which csv.reader reads the lines of the next record."""

    def __init__(self, lines: RecordLines, encoding: str, limit: int) -> None:
        self.lines = lines
        self.encoding = encoding
        self._limit = limit
        self.record: list[bytes] = []
        """The lines of the current record."""
        self._bytes = 0

    def start_record(self) -> None:
        self.record.clear()
        self._bytes = 0

    def __next__(self) -> str:
        is_first = self.lines.position == 0
        found = self.lines.take(1)
        if not found:
            raise StopIteration
        (line,) = found
        self.record.append(line)
        self._bytes += len(line)
        if self._bytes > self._limit:
            raise csv.Error(f"the record has more than record.max.bytes={self._limit} bytes; a quote may be missing")
        if is_first and line.startswith(_BOM):
            line = line[len(_BOM) :]
        return line.decode(self.encoding) + "\n"


class CsvReader(_TextReader):
    """Reads a CSV file. Each of its records becomes a struct. Empty lines are skipped."""

    def __init__(self, lines: RecordLines, config: DirectorySourceConfig) -> None:
        """Read the header. Raises FileError."""
        super().__init__(lines)
        self._delimiter, self._quote = character(config.csv_delimiter), character(config.csv_quote)
        self._null = config.csv_null_value
        self._csv_lines = _CsvLines(lines, config.encoding, config.record_max_bytes)
        self._start_parser()
        columns = parse_columns(config.csv_columns)
        self._columns: list[Column] | None = columns or None
        self._indexes: list[int] | None = None
        self._names: list[str] = []
        if config.csv_header:
            self._read_header(columns)
        if self._columns is not None:
            self._set_columns(self._columns)

    def _start_parser(self) -> None:
        self._parser = csv.reader(self._csv_lines, delimiter=self._delimiter, quotechar=self._quote, strict=True)

    def _read_header(self, columns: list[Column]) -> None:
        try:
            names = self._next_row()
        except BadRecordError as error:
            raise FileError(f"the header is invalid: {error}") from error
        if names is None:
            return
        if len(set(names)) < len(names) or "" in names:
            bad = next(number for number, name in enumerate(names, 1) if not name or name in names[: number - 1])
            what = "has no name" if not names[bad - 1] else f"has the same name {names[bad - 1]!r} as another column"
            raise FileError(
                f"line 1: column {bad} of the header {what}; set csv.header=false if the file has no header"
            )
        self._names = names
        if columns:
            missing = [column.name for column in columns if column.name not in names]
            if missing:
                raise FileError(f"line 1: the header {names} has no column {missing[0]!r}, which csv.columns declares")
            self._indexes = [names.index(column.name) for column in columns]
        else:
            self._columns = text_columns(names)

    def _set_columns(self, columns: list[Column]) -> None:
        self.schema = struct([(column.name, column.schema) for column in columns])
        self._names = self._names or [column.name for column in columns]
        null = self._null
        self._converters = [
            (place, column.convert if null is None else with_nulls(column, null))
            for place, column in enumerate(columns)
            if null is not None or column.convert is not None
        ]

    def read(self, count: int) -> Values:
        """Return at most `count` STRUCT values, one for each CSV record. Each STRUCT value is a tuple."""
        rows: list[tuple[Any, ...]] = []
        while len(rows) < count:
            before = self._lines.line
            try:
                row = self._next_row(has_rows=bool(rows))
                if row is None:
                    break
                rows.append(self._values(row, before + 1))
            except (FileError, TemporaryFileError):
                if not rows:
                    raise
                break  # the next call raises the error
            except BadRecordError:
                if not rows:
                    raise
                self._lines.push_back(self._csv_lines.record)
                self._start_parser()
                break
        return rows

    def _next_row(self, *, has_rows: bool = False) -> list[str] | None:
        """Return the fields of the next record, or None at the end of the file.

        Raises BadRecordError if the record is invalid. The next call then continues after the record's first line.
        `has_rows` is true if the caller has rows that it must return first. In this case, return None instead of
        raising an error if the record's first line is too long.
        """
        source = self._csv_lines
        row: list[str] = []
        while not row:
            line = self._lines.line
            source.start_record()
            try:
                row = next(self._parser)
            except StopIteration:
                self._start_parser()
                return None
            except (FileError, TemporaryFileError):
                self._lines.push_back(source.record)
                self._start_parser()
                raise
            except (csv.Error, LineTooLongError, UnicodeDecodeError) as error:
                self._start_parser()
                if not source.record:
                    if has_rows:
                        return None
                    self._lines.skip_long_line()
                column = self._unquoted_column(source.record) if isinstance(error, csv.Error) else 0
                place = f"column {column}: " if column else ""
                self._lines.push_back(source.record[1:])
                del source.record[1:]
                text = _encoding_text(error) if isinstance(error, UnicodeDecodeError) else _csv_text(str(error))
                raise BadRecordError(line + 1, f"{place}invalid CSV record: {text}") from error
        return row

    def _unquoted_column(self, record: list[bytes]) -> int:
        """Return the number of the first field with invalid quotes, or 0 if there is no such field."""
        text, column, place = b"\n".join(record).decode(self._csv_lines.encoding, "replace"), 1, 0
        while place < len(text):
            if text[place] == self._quote:
                end = text.find(self._quote, place + 1)
                while end >= 0 and text[end + 1 : end + 2] == self._quote:  # a doubled quote
                    end = text.find(self._quote, end + 2)
                if end < 0 or text[end + 1 : end + 2] not in ("", self._delimiter, "\r"):
                    return column
                place = end + 1
            following = text.find(self._delimiter, place)
            if following < 0:
                break
            column, place = column + 1, following + 1
        return 0

    def _values(self, row: list[str], line: int) -> tuple[Any, ...]:
        if self._columns is None:
            self._columns = text_columns([f"column{number}" for number in range(1, len(row) + 1)])
            self._set_columns(self._columns)
        if len(row) != len(self._names):
            raise BadRecordError(line, f"the record has {len(row)} fields, but there are {len(self._names)} columns")
        values: list[Any] = row if self._indexes is None else [row[index] for index in self._indexes]
        for place, convert in self._converters:
            try:
                values[place] = convert(values[place])  # type: ignore[misc]
            except ValueError as error:
                column = self._columns[place].name
                number = place + 1 if self._indexes is None else self._indexes[place] + 1
                raise BadRecordError(line, f"column {number} ({column}): {error}") from error
        return tuple(values)


class ParquetReader(RecordReader):
    """Reads a Parquet file. Each of its rows becomes a struct."""

    unit = "row"

    def __init__(self, descriptor: int, position: int) -> None:
        """Read the footer, and skip the first `position` rows. Raises FileError or TemporaryFileError."""
        from headrace_connectors.common.parquet_rows import ParquetRows  # imports PyArrow, which is slow

        try:
            self._rows = ParquetRows(open(descriptor, "rb", closefd=False))  # noqa: SIM115 - the caller closes it
            self._rows.skip(position)
        except Exception as error:
            raise _parquet_error(error) from error
        self.schema = self._rows.schema
        self._position = position

    @property
    def is_at_end(self) -> bool:
        return self._rows.is_at_end

    @property
    def position(self) -> int:
        return self._position

    @property
    def line(self) -> int:
        return self._position

    def read(self, count: int) -> Values:
        """Return the next rows of the Parquet file, at most `count`."""
        try:
            rows = self._rows.read(count)
        except DataError as error:
            raise _parquet_error(error) from error
        self._position += len(rows)
        return rows


def text_reader(lines: RecordLines, config: DirectorySourceConfig) -> RecordReader:
    """Return the reader for the configured text format: csv, json or lines. Raises FileError."""
    if config.format == "csv":
        return CsvReader(lines, config)
    return JsonReader(lines) if config.format == "json" else LinesReader(lines, config.encoding)


def _parquet_error(error: Exception) -> FileError | TemporaryFileError:
    """Convert an exception of PyArrow to the exception that the reader raises.

    An OSError with an errno comes from the file system. The result is then a TemporaryFileError. In all other cases,
    the result is a FileError.
    """
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno is not None:
        return TemporaryFileError(str(cause))
    return FileError(str(error))


def _csv_text(error: str) -> str:
    """Return the error text for `error`, the message of a csv.Error.

    If the message is meant for Python programmers, return a clearer text instead.
    """
    if error.startswith("new-line character"):
        return "a carriage return outside quotes is not at the end of the line"
    if error.startswith("unexpected end of data"):
        return "a quoted field has no end"
    return error


def _encoding_text(error: UnicodeDecodeError) -> str:
    return (
        f"byte {error.start + 1} of the line is not valid {error.encoding}: {error.reason}; set the key encoding to "
        "the encoding of the file"
    )
