r"""Splits a stream of bytes into lines. This module has no I/O.

A line ends with `\n`, `\r\n` or `\r`. Bytes without a line terminator are buffered. A final `\r` is
buffered too, because a `\n` may follow it. `next_lines` returns many lines in one string, because
one call per line would take longer than all other work of the file source.
"""

from __future__ import annotations

from headrace.data.columns import Lines

CHUNK_BYTES = 128 * 1024
"""`next_lines` splits about this many bytes at once. The CPU cache can hold them and their lines."""


class LineSplitter:
    """Splits blocks of bytes into lines: `feed` receives the blocks, and `next_lines` returns the lines.

    `position` is the offset in bytes after the last line that `next_lines` returned.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._partial = bytearray()  # the bytes after the last line terminator
        self._complete = b""
        self._split_bytes = 0  # this many bytes of `_complete` are split into chunks
        self._chunk: _Chunk | None = None  # has lines that `next_lines` has not returned yet

    @property
    def has_lines(self) -> bool:
        """Whether a complete line is available."""
        return self._chunk is not None or bool(self._complete)

    @property
    def partial_bytes(self) -> int:
        """The number of buffered bytes that belong to an unterminated line."""
        return len(self._partial)

    def feed(self, block: bytes) -> None:
        """Add a block of bytes. Call `feed` only while `has_lines` is false."""
        if b"\n" not in block and b"\r" not in block and not self._partial.endswith(b"\r"):
            # Append in place. Copying a very long line for every block would take quadratic time.
            self._partial += block
            return
        data = b"".join((self._partial, block)) if self._partial else block
        end = _end_of_last_line(data, 0, len(data))
        self._complete, self._partial, self._split_bytes = data[:end], bytearray(memoryview(data)[end:]), 0

    def next_lines(self, maximum: int) -> Lines:
        """Return at least one and at most `maximum` lines, without their terminators."""
        chunk = self._chunk or self._next_chunk()
        lines, size_bytes = chunk.take(maximum)
        self._chunk = chunk if chunk.has_lines else None
        self.position += size_bytes
        return lines

    def _next_chunk(self) -> _Chunk:
        data, start, stop = self._complete, self._split_bytes, len(self._complete)
        if stop - start > CHUNK_BYTES:
            stop = _end_of_last_line(data, start, start + CHUNK_BYTES) or _end_of_first_line(data, start)
        self._split_bytes = stop
        if stop == len(data):
            self._complete = b""  # an idle task should not keep the block in memory
        return _Chunk(data[start:stop])


class _Chunk:
    """Complete lines that are split at once."""

    def __init__(self, data: bytes) -> None:
        self._original = data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._data = data
        self._lines = data.split(b"\n")
        self._lines.pop()  # the empty bytes after the last terminator
        self._taken_lines = 0
        self._taken_bytes = 0  # of `_data`
        self._sizes: list[int] | None = None

    @property
    def has_lines(self) -> bool:
        return self._taken_lines < len(self._lines)

    def take(self, maximum: int) -> tuple[Lines, int]:
        """Return at most `maximum` lines, and their size in bytes including the original terminators."""
        first = self._taken_lines
        if first == 0 and len(self._lines) <= maximum:
            self._taken_lines = len(self._lines)
            return _decode(memoryview(self._data)[:-1], self._lines), len(self._original)
        lines = self._lines[first : first + maximum]
        start, stop = self._taken_bytes, self._taken_bytes + sum(map(len, lines)) + len(lines)
        self._taken_lines, self._taken_bytes = first + len(lines), stop
        size_bytes = stop - start if self._data is self._original else self._original_bytes(first, len(lines))
        return _decode(memoryview(self._data)[start : stop - 1], lines), size_bytes

    def _original_bytes(self, first: int, count: int) -> int:
        if self._sizes is None:
            self._sizes = list(map(len, self._original.splitlines(keepends=True)))
        return sum(self._sizes[first : first + count])


def _decode(text: memoryview, lines: list[bytes]) -> Lines:
    """Return `lines`, which `text` contains with line feeds between them. Bytes that are not UTF-8 become U+FFFD."""
    try:
        return Lines(str(text, "utf-8"), len(lines), lines)
    except UnicodeDecodeError:
        return Lines(str(text, "utf-8", "replace"), len(lines))


def _end_of_last_line(data: bytes, start: int, stop: int) -> int:
    r"""Return the index after the last line terminator between `start` and `stop`, or 0 if there is none.

    A `\r` immediately before `stop` does not count, because a `\n` may follow it.
    """
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, max(stop - 1, start))) + 1


def _end_of_first_line(data: bytes, start: int) -> int:
    """Return the index after the line that begins at `start`. The line must have a terminator."""
    return start + len(data[start:].splitlines(keepends=True)[0])
