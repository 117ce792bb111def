r"""Cutting a stream of bytes into lines. Pure.

A line ends at `\n`, `\r\n` or `\r`; what has no end yet is held back, so is a `\r` whose `\n` may follow. Blocks are
cut and decoded whole, since a call per line would cost more than all the rest of a file source.
"""

from __future__ import annotations


class LineCutter:
    """Feed bytes, take lines; `position` counts the bytes of the lines that were taken."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._held = bytearray()  # the beginning of a line
        self._lines: list[str] = []
        self._sizes: list[int] | None = None  # bytes of each line with its end; None: characters + 1
        self._next = 0

    @property
    def waiting(self) -> int:
        """How many lines can be taken."""
        return len(self._lines) - self._next

    @property
    def held_bytes(self) -> int:
        """How many bytes of an unfinished line are held."""
        return len(self._held)

    def feed(self, block: bytes) -> None:
        """Add bytes; only when no line is waiting."""
        if b"\n" not in block and b"\r" not in block and not self._held.endswith(b"\r"):
            self._held += block  # a very long line is not copied for each of its blocks
            return
        data = bytes(self._held + block) if self._held else block
        has_returns = b"\r" in data
        end = data.rfind(b"\n") + 1
        if has_returns:
            end = max(end, data.rfind(b"\r", 0, len(data) - 1) + 1)
        if end == 0:
            self._held = bytearray(data)
            return
        complete, self._held = data[:end], bytearray(data[end:])
        self._next = 0
        if has_returns:
            self._cut_any(complete)
        else:
            self._cut_simple(complete)

    def take(self, maximum: int) -> list[str]:
        """Up to `maximum` lines, without their ends."""
        start, stop = self._next, min(self._next + maximum, len(self._lines))
        lines = self._lines[start:stop] if start or stop < len(self._lines) else self._lines
        sizes = self._sizes
        self.position += sum(map(len, lines)) + len(lines) if sizes is None else sum(sizes[start:stop])
        self._next = stop
        return lines

    def _cut_simple(self, complete: bytes) -> None:
        text = complete.decode("utf-8", "replace")
        self._lines = text.split("\n")
        self._lines.pop()
        self._sizes = None if len(text) == len(complete) else [len(line) + 1 for line in complete.split(b"\n")[:-1]]

    def _cut_any(self, complete: bytes) -> None:
        lines = complete.splitlines(keepends=True)
        self._sizes = [len(line) for line in lines]
        self._lines = [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in lines]
