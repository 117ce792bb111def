"""Parses lines of text into records, like Kafka's LineMessageReader. This module does no I/O.

    headers <headers.delimiter> key <key.separator> value      with parse.headers=true and parse.key=true
    h1:v1,h2:v2                                                 headers with headers.separator, headers.key.separator

Lines end with \\n, \\r or \\r\\n. Bytes that are not valid UTF-8 are kept unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.tools.tool_error import ToolError

_PROPERTIES = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
}


class LineSplitter:
    """Splits chunks of bytes into complete lines and keeps the incomplete last line for the next chunk."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        if b"\n" not in chunk and b"\r" not in chunk:
            self._pending.append(chunk)
            return []
        data = b"".join((*self._pending, chunk))
        # A carriage return at the end of `chunk` may be the first byte of \r\n.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        self._pending = [data[end:]]
        return data[:end].splitlines()

    def finish(self) -> list[bytes]:
        """Return the incomplete last line, or no line if the input ended with a line ending."""
        pending = b"".join(self._pending)
        self._pending = []
        return pending.splitlines()


class LineReader:
    """Parses lines according to the reader's properties; error messages contain the line number."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Check and store the reader's properties. Raises ToolError for separators that are empty or equal."""
        given = {**_PROPERTIES, **properties}
        self._parses_key = _is_true(given["parse.key"])
        self._parses_headers = _is_true(given["parse.headers"])
        self._ignores_errors = _is_true(given["ignore.error"])
        self._key_separator = given["key.separator"].encode()
        self._headers_delimiter = given["headers.delimiter"].encode()
        self._headers_separator = given["headers.separator"].encode()
        self._header_key_separator = given["headers.key.separator"].encode()
        marker = given.get("null.marker")
        self._null_marker = None if marker is None else marker.encode()
        self.line_number = 0
        _check_separators(given)
        try:
            self._headers_pattern = re.compile(self._headers_separator)
        except re.error as error:
            raise ToolError(f"headers.separator: {given['headers.separator']} is an invalid regex: {error}") from None

    def read(self, lines: Sequence[bytes]) -> tuple[RecordColumns, ToolError | None]:
        """Parse lines into records. Return the records before the first invalid line, and the error for that line."""
        if not self._parses_key and not self._parses_headers:
            self.line_number += len(lines)
            return RecordColumns(
                values=[self._value(line) for line in lines] if self._null_marker else list(lines)
            ), None
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: list[RecordHeaders] = []
        parse_error: ToolError | None = None
        for line in lines:
            self.line_number += 1
            try:
                key, value, line_headers = self._parse(line)
            except ToolError as error:
                parse_error = error
                break
            keys.append(key)
            values.append(value)
            headers.append(line_headers)
        columns = RecordColumns(
            values=values,
            keys=keys if self._parses_key else None,
            headers=headers if any(headers) else None,
        )
        return columns, parse_error

    def _value(self, text: bytes) -> bytes | None:
        return None if text == self._null_marker else text

    def _parse(self, line: bytes) -> tuple[bytes | None, bytes | None, RecordHeaders]:
        headers: RecordHeaders = []
        remaining = line
        if self._parses_headers:
            before, separator, after = remaining.partition(self._headers_delimiter)
            if separator:
                remaining = after
                headers = [] if before == self._null_marker else self._headers(before)
            elif not self._ignores_errors:
                raise self._missing_error("No headers delimiter found", line)
        key: bytes | None = None
        if self._parses_key:
            before, separator, after = remaining.partition(self._key_separator)
            if separator:
                key, remaining = self._value(before), after
            elif not self._ignores_errors:
                raise self._missing_error("No key separator found", line)
        return key, self._value(remaining), headers

    def _headers(self, text: bytes) -> RecordHeaders:
        pairs = self._headers_pattern.split(text)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return [self._header(pair) for pair in pairs]

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        name, separator, value = pair.partition(self._header_key_separator)
        if not separator and not self._ignores_errors:
            shown = pair.decode("utf-8", "replace")
            raise ToolError(f"No header key separator found in pair '{shown}' on line number {self.line_number}")
        if separator and name == self._null_marker:
            raise ToolError(
                f"Header keys should not be equal to the null marker '{name.decode()}' as they can't be null"
            )
        return name.decode("utf-8", "replace"), self._value(value) if separator else None

    def _missing_error(self, problem: str, line: bytes) -> ToolError:
        return ToolError(f"{problem} on line number {self.line_number}: '{line.decode('utf-8', 'replace')}'")


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _check_separators(given: Mapping[str, str]) -> None:
    names = ("headers.delimiter", "headers.separator", "headers.key.separator")
    pairs = [(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]
    pairs += [("null.marker", name) for name in ("key.separator", *names)]
    for one, other in pairs:
        if given.get(one) == given.get(other):
            raise ToolError(f"{one} and {other} may not be equal")
    for name in ("key.separator", *names):
        if not given[name]:
            raise ToolError(f"{name} may not be empty")
