r"""Reads the lines of a file, which may be compressed with gzip, and counts bytes and lines.

A line ends with `\n`. A `\r` before the `\n` stays in the line. The memory depends on the block size and the largest
permitted line, but not on the size of the file. Positions count bytes of the uncompressed content.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable

from headrace.api.errors import DataError
from headrace_connectors.common.gzip_reader import GzipReader

BLOCK_BYTES = 256 * 1024
_SKIP_BYTES = 16 * 1024 * 1024


class FileError(DataError):
    """A file is damaged. The task cannot read it, or cannot read the part after the damage."""


class TemporaryFileError(Exception):
    """The file system failed, for example on a network drive. Reading the file may succeed later."""


class LineTooLongError(DataError):
    """The next line is longer than record.max.bytes."""


class RecordLines:
    """The lines of one file, which are read one after another.

    `position` and `line` are the number of bytes and lines before the next line. Methods raise FileError if the
    file is damaged, and TemporaryFileError if the file system fails.
    """

    def __init__(self, descriptor: int, *, is_gzip: bool, limit: int) -> None:
        """Start at the beginning of the file. The caller closes the descriptor. A line may have up to `limit` bytes."""
        self._file = io.FileIO(descriptor, closefd=False)
        self._stream: io.FileIO | GzipReader = GzipReader(self._file.read) if is_gzip else self._file
        self._limit = limit
        self._rest = bytearray()
        self._lines: deque[bytes] = deque()
        self._is_at_end = False
        self.position = 0
        self.line = 0

    def skip_to(self, position: int, line: int, should_go_on: Callable[[], bool] = lambda: True) -> bool:
        """Continue at `position`, which follows the first `line` lines. Return whether the position was reached.

        In a compressed file, this takes time. If `should_go_on` returns False in the meantime, stop and return False.
        """
        try:
            if isinstance(self._stream, GzipReader):
                self._file.seek(0)
                self._stream, missing = GzipReader(self._file.read), position
                while missing and (skipped := self._stream.skip(min(missing, _SKIP_BYTES))):
                    missing -= skipped
                    if missing and not should_go_on():
                        return False
            else:
                self._file.seek(position)
        except OSError as error:
            raise TemporaryFileError(str(error)) from error
        except DataError as error:
            raise FileError(str(error)) from error
        self._rest.clear()
        self._lines.clear()
        self._is_at_end = False
        self.position, self.line = position, line
        return True

    @property
    def is_at_end(self) -> bool:
        """Whether all lines of the file have been returned."""
        return self._is_at_end and not self._lines

    def take(self, count: int) -> list[bytes]:
        r"""Return between 1 and `count` lines, without their `\n`. At the end of the file, return an empty list.

        Raises LineTooLongError if the next line is too long. `skip_long_line` skips this line.
        """
        while not self._lines and not self._is_at_end:
            self._read_block()
            if not self._lines and len(self._rest) > self._limit:
                raise self._too_long()
        if count >= len(self._lines):
            lines = list(self._lines)
            self._lines.clear()
        else:
            lines = [self._lines.popleft() for _ in range(count)]
        self.position += sum(map(len, lines)) + len(lines)
        self.line += len(lines)
        if lines and max(map(len, lines)) > self._limit:
            first = next(index for index, line in enumerate(lines) if len(line) > self._limit)
            self.push_back(lines[first:])
            del lines[first:]
            if not lines:
                raise self._too_long()
        return lines

    def skip_long_line(self) -> None:
        """Skip the line for which `take` raised LineTooLongError."""
        skipped = 0
        while not self._lines and not self._is_at_end:
            skipped += len(self._rest)
            self._rest.clear()
            self._read_block()
        if self._lines:
            skipped += len(self._lines.popleft())
        self.position += skipped + 1
        self.line += 1

    def _too_long(self) -> LineTooLongError:
        return LineTooLongError(f"the line has more than record.max.bytes={self._limit} bytes")

    def push_back(self, lines: list[bytes]) -> None:
        """Undo `take` for the last lines that it returned. The next call of `take` returns these lines again."""
        self._lines.extendleft(reversed(lines))
        self.position -= sum(map(len, lines)) + len(lines)
        self.line -= len(lines)

    def _read_block(self) -> None:
        try:
            data = self._stream.read(BLOCK_BYTES)
        except OSError as error:
            raise TemporaryFileError(str(error)) from error
        except DataError as error:
            raise FileError(str(error)) from error
        if data:
            if b"\n" not in data:  # append in place: a copy for each block would take quadratic time
                self._rest += data
                return
            first, *lines = data.split(b"\n")
            self._rest += first
            lines.insert(0, bytes(self._rest))
            self._rest = bytearray(lines.pop())
            self._lines.extend(lines)
            return
        self._is_at_end = True
        if self._rest:
            self._lines.append(bytes(self._rest))
            self._rest.clear()
