r"""Splits a stream of bytes into lines. This module does no I/O.

A line ends with `\n`, `\r\n` or `\r`. Bytes without a line terminator are buffered. A final `\r` is
buffered too, because a `\n` may follow it. `next_lines` returns many lines in one string, because
one call per line would take longer than all other work of the file source.
"""

from __future__ import annotations

import re

from headrace.data.columns import Lines

CHUNK_BYTES = 160 * 1024
"""`next_lines` splits at most about this many bytes. The CPU cache can hold them and their lines."""
_BYTES_PER_LINE = 512
"""`next_lines` splits at most about this many bytes per line that it may return, because the next call splits the
remaining bytes again."""
_terminator = re.compile(rb"\r\n?|\n")


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

    @property
    def has_lines(self) -> bool:
        """Whether a complete line is available."""
        return self._split_bytes < self._complete_bytes

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
        chunk, stop = self._next_chunk(min(CHUNK_BYTES, maximum * _BYTES_PER_LINE))
        data = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if self._has_returns else chunk
        lines = data.split(b"\n", maximum)
        rest = lines.pop()  # is split again by the next call
        size = len(data) - len(rest)
        taken_bytes = size
        if data is not chunk:  # a line terminator of the chunk has one or two bytes
            taken_bytes = _size_of_lines(chunk, len(lines), 2 * size) if rest else len(chunk)
        self._start, self._split_bytes = b"", stop - (len(chunk) - taken_bytes)
        if not self.has_lines:
            self._block = b""  # an idle task should not keep the block in memory
        self.position += taken_bytes
        return _decode(memoryview(data)[: size - 1], lines)

    def _next_chunk(self, size_max: int) -> tuple[bytes, int]:
        """Return the complete lines in the next `size_max` bytes, but at least one line, and their end in `_block`."""
        block, start, stop = self._block, self._split_bytes, self._complete_bytes
        if stop - start > size_max:
            has_returns = self._has_returns
            stop = _end_of_last_line(block, start, start + size_max, has_returns)
            stop = stop or _end_of_first_line(block, start, has_returns)
        return self._start + block[start:stop] if self._start else block[start:stop], stop


def _decode(text: memoryview, lines: list[bytes]) -> Lines:
    """Decode `text`, which contains `lines` joined by line feeds. Bytes that are not UTF-8 become U+FFFD."""
    try:
        return Lines(str(text, "utf-8"), len(lines), lines)
    except UnicodeDecodeError:
        return Lines(str(text, "utf-8", "replace"), len(lines))


def _size_of_lines(data: bytes, count: int, size_max: int) -> int:
    """Return the size in bytes of the first `count` lines with their terminators.

    The caller knows that this size is at most `size_max`. The function does not split the bytes after `size_max`.
    """
    return sum(map(len, data[:size_max].splitlines(keepends=True)[:count]))


def _end_of_last_line(data: bytes, start: int, stop: int, has_returns: bool) -> int:
    r"""Return the index after the last line terminator between `start` and `stop`, or 0 if there is none.

    A `\r` immediately before `stop` does not count, because a `\n` may follow it. `has_returns` is false if `data`
    contains no `\r`.
    """
    last = data.rfind(b"\n", start, stop)
    if has_returns:
        last = max(last, data.rfind(b"\r", start, max(stop - 1, start)))
    return last + 1


def _end_of_first_line(data: bytes, start: int, has_returns: bool) -> int:
    """Return the index after the line that begins at `start`. The line must have a terminator."""
    if not has_returns:
        return data.index(b"\n", start) + 1
    terminator = _terminator.search(data, start)
    assert terminator is not None
    return terminator.end()
