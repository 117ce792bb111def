r"""Splits a stream of bytes into lines. This module has no I/O.

A line ends with `\n`, `\r\n` or `\r`. Bytes without a line terminator are buffered. A final `\r` is
buffered too, because a `\n` may follow it. `next_lines` returns many lines in one string, because
one call per line would take longer than all other work of the file source.
"""

from __future__ import annotations

from headrace.data.columns import Lines


class LineSplitter:
    """Splits blocks of bytes into lines: `feed` receives the blocks, and `next_lines` returns the lines.

    `position` is the offset in bytes after the last line that `next_lines` returned.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._partial = bytearray()  # the bytes after the last line terminator
        self._complete = b""
        self._consumed = 0  # `next_lines` has returned this many bytes of `_complete`

    @property
    def has_lines(self) -> bool:
        """Whether a complete line is available."""
        return self._consumed < len(self._complete)

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
        self._complete, self._partial, self._consumed = data[:end], bytearray(memoryview(data)[end:]), 0

    def next_lines(self, maximum: int) -> Lines:
        """Return at least one and at most `maximum` lines, without their terminators."""
        start, stop = self._consumed, len(self._complete)
        while True:
            chunk = self._complete[start:stop]
            if b"\r" in chunk:
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            count = len(chunk) - len(chunk.replace(b"\n", b""))  # this is twice as fast as chunk.count(b"\n")
            if count <= maximum:
                break
            shorter = start + (stop - start) * maximum // (count + 1)
            stop = _end_of_last_line(self._complete, start, shorter) or _end_of_first_line(self._complete, start)
        self.position += stop - start
        self._consumed = stop
        return Lines(str(memoryview(chunk)[:-1], "utf-8", "replace"), count)


def _end_of_last_line(data: bytes, start: int, stop: int) -> int:
    r"""Return the index after the last line terminator between `start` and `stop`, or 0 if there is none.

    A `\r` immediately before `stop` does not count, because a `\n` may follow it.
    """
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, max(stop - 1, start))) + 1


def _end_of_first_line(data: bytes, start: int) -> int:
    """Return the index after the line that begins at `start`. The line must have a terminator."""
    return start + len(data[start:].splitlines(keepends=True)[0])
