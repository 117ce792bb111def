r"""Splits a stream of bytes into lines. No I/O.

A line ends with `\n`, `\r\n` or `\r`. Bytes without a line terminator are buffered, and so is a final `\r`, because a
`\n` may follow it. `next_lines` returns many lines in one string, because one call per line would take longer than all
other work of the file source.
"""

from __future__ import annotations

from headrace.data.columns import Lines


class LineSplitter:
    """Takes blocks of bytes through `feed` and returns lines through `next_lines`.

    `position` is the offset in bytes after the last line that `next_lines` returned.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._partial = bytearray()  # the start of a line that is not terminated yet
        self._complete = b""
        self._consumed = 0  # bytes of `_complete` that `next_lines` has returned

    @property
    def has_lines(self) -> bool:
        """Whether a complete line is available."""
        return self._consumed < len(self._complete)

    @property
    def partial_bytes(self) -> int:
        """The number of buffered bytes that belong to an unterminated line."""
        return len(self._partial)

    def feed(self, block: bytes) -> None:
        """Add bytes. Call it only while `has_lines` is false."""
        if b"\n" not in block and b"\r" not in block and not self._partial.endswith(b"\r"):
            self._partial += block  # append in place: copying a very long line for every block would be quadratic
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
            count = len(chunk) - len(chunk.replace(b"\n", b""))  # twice as fast as chunk.count(b"\n")
            if count <= maximum:
                break
            shorter = start + (stop - start) * maximum // (count + 1)
            stop = _end_of_last_line(self._complete, start, shorter) or _end_of_first_line(self._complete, start)
        self.position += stop - start
        self._consumed = stop
        return Lines(str(memoryview(chunk)[:-1], "utf-8", "replace"), count)


def _end_of_last_line(data: bytes, start: int, stop: int) -> int:
    r"""Return the index after the last line terminator between `start` and `stop`, or 0 if there is none.

    A `\r` right before `stop` does not count: it may be the first half of `\r\n`.
    """
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, max(stop - 1, start))) + 1


def _end_of_first_line(data: bytes, start: int) -> int:
    """Return the index after the first line. The line must be terminated."""
    return start + len(data[start:].splitlines(keepends=True)[0])
