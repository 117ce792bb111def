r"""Cutting a stream of bytes into lines. Pure.

A line ends at `\n`, `\r\n` or `\r`; what has no end yet is held back, so is a `\r` whose `\n` may follow. Lines are
taken many at a time and as one text, since a call per line would cost more than all the rest of a file source.
"""

from __future__ import annotations

from headrace.data.columns import Lines


class LineCutter:
    """Feed bytes, take lines; `position` counts the bytes of the lines that were taken."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._held = bytearray()  # the beginning of a line
        self._complete = b""
        self._taken = 0  # bytes of what is complete

    @property
    def has_lines(self) -> bool:
        """Whether there are lines to take."""
        return self._taken < len(self._complete)

    @property
    def held_bytes(self) -> int:
        """How many bytes of an unfinished line are held."""
        return len(self._held)

    def feed(self, block: bytes) -> None:
        """Add bytes; only when no line is waiting."""
        if b"\n" not in block and b"\r" not in block and not self._held.endswith(b"\r"):
            self._held += block  # a very long line is not copied for each of its blocks
            return
        data = b"".join((self._held, block)) if self._held else block
        end = _last_end(data, 0, len(data))
        self._complete, self._held, self._taken = data[:end], bytearray(memoryview(data)[end:]), 0

    def take(self, maximum: int) -> Lines:
        """Up to `maximum` lines, and at least one, without their ends."""
        start, stop = self._taken, len(self._complete)
        while True:
            piece = self._complete[start:stop]
            if b"\r" in piece:
                piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            count = len(piece) - len(piece.replace(b"\n", b""))  # in half the time that `count` takes
            if count <= maximum:
                break
            shorter = start + (stop - start) * maximum // (count + 1)
            stop = _last_end(self._complete, start, shorter) or _first_end(self._complete, start)
        self.position += stop - start
        self._taken = stop
        return Lines(str(memoryview(piece)[:-1], "utf-8", "replace"), count)


def _last_end(data: bytes, start: int, stop: int) -> int:
    r"""Where the last line ends in between, 0 when none does; a `\r` at the end may be half of a line's end."""
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, max(stop - 1, start))) + 1


def _first_end(data: bytes, start: int) -> int:
    """Where the first line ends, which is a complete one."""
    return start + len(data[start:].splitlines(keepends=True)[0])
