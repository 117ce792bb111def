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
        self._start = b""  # the bytes of earlier blocks with which the first line of `_block` starts
        self._block = b""
        self._split_bytes = 0  # this many bytes of `_block` are split into chunks
        self._complete_bytes = 0  # this many bytes of `_block` belong to complete lines
        self._has_returns = False  # whether `_block` contains `\r`
        self._chunk: _Chunk | None = None  # has lines that `next_lines` has not returned yet

    @property
    def has_lines(self) -> bool:
        """Whether a complete line is available."""
        return self._chunk is not None or self._split_bytes < self._complete_bytes

    @property
    def partial_bytes(self) -> int:
        """The number of buffered bytes that belong to an unterminated line."""
        return len(self._partial)

    def feed(self, block: bytes) -> None:
        """Add a block of bytes. Call `feed` only while `has_lines` is false."""
        if self._partial.endswith(b"\r"):  # a line terminator, or the first half of one
            block = b"".join((self._partial, block))
            self._partial = bytearray()
        has_returns = b"\r" in block
        if not has_returns and b"\n" not in block:
            # Append in place. Copying a very long line for every block would take quadratic time.
            self._partial += block
            return
        end = _end_of_last_line(block, 0, len(block), has_returns)
        if not end:  # the only line terminator is a final `\r`
            self._partial += block
            return
        # The block is not copied. Only the first chunk starts with the bytes from the previous block.
        self._start, self._partial = bytes(self._partial), bytearray(memoryview(block)[end:])
        self._block, self._split_bytes, self._complete_bytes = block, 0, end
        self._has_returns = has_returns

    def next_lines(self, maximum: int) -> Lines:
        """Return at least one and at most `maximum` lines, without their terminators."""
        chunk = self._chunk or self._next_chunk()
        lines, size_bytes = chunk.take(maximum)
        self._chunk = chunk if chunk.has_lines else None
        self.position += size_bytes
        return lines

    def _next_chunk(self) -> _Chunk:
        block, start, stop = self._block, self._split_bytes, self._complete_bytes
        if stop - start > CHUNK_BYTES:
            limit = start + CHUNK_BYTES
            stop = _end_of_last_line(block, start, limit, self._has_returns) or _end_of_first_line(block, start)
        data = self._start + block[start:stop] if self._start else block[start:stop]
        self._start, self._split_bytes = b"", stop
        if stop == self._complete_bytes:
            self._block = b""  # an idle task should not keep the block in memory
        return _Chunk(data, self._has_returns)


class _Chunk:
    """Complete lines that are split at once."""

    def __init__(self, data: bytes, has_returns: bool) -> None:
        self._original = data
        if has_returns:
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


def _end_of_last_line(data: bytes, start: int, stop: int, has_returns: bool) -> int:
    r"""Return the index after the last line terminator between `start` and `stop`, or 0 if there is none.

    A `\r` immediately before `stop` does not count, because a `\n` may follow it. `has_returns` is false if `data`
    contains no `\r`.
    """
    last = data.rfind(b"\n", start, stop)
    if has_returns:
        last = max(last, data.rfind(b"\r", start, max(stop - 1, start)))
    return last + 1


def _end_of_first_line(data: bytes, start: int) -> int:
    """Return the index after the line that begins at `start`. The line must have a terminator."""
    return start + len(data[start:].splitlines(keepends=True)[0])
