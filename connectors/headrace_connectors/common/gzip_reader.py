"""Decompresses gzip data. If the data is damaged, the content before the damage is returned.

A gzip file may consist of several members."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from headrace.api.errors import DataError

_RAW_BYTES = 128 * 1024
_GZIP = 31


class GzipReader:
    """Reads the content of gzip data with bounded memory. Empty input is valid and has no content, as in Python's gzip.

    Python's GzipFile is not used: when it finds damage, it discards the content that it decompressed in the same call.
    """

    def __init__(self, read_raw: Callable[[int], bytes]) -> None:
        """`read_raw` returns up to the given number of compressed bytes.

        At the end of the data, it returns no bytes.
        """
        self._read_raw = read_raw
        self._member = zlib.decompressobj(_GZIP)
        self._is_in_member = False
        """Whether some bytes of the current member were read, but not all."""
        self._raw = b""
        self._error: DataError | None = None

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes of the content. At the end, return no bytes.

        Raises DataError if the data is damaged or truncated, after all content before the damage was returned.
        """
        while self._error is None:
            if not self._raw:
                self._raw = self._read_raw(_RAW_BYTES)
                if not self._raw:
                    break
            if not self._is_in_member:
                self._start_member()
                continue
            data = self._decompress(size)
            if data:
                return data
        if self._error is None and self._is_in_member:
            self._error = DataError("the compressed data is truncated")
        if self._error is not None:
            raise self._error
        return b""

    def skip(self, size: int) -> int:
        """Skip `size` bytes of the content, or fewer at the end. Return the number of skipped bytes."""
        skipped = 0
        while skipped < size and (data := self.read(min(size - skipped, _RAW_BYTES))):
            skipped += len(data)
        return skipped

    def _start_member(self) -> None:
        """Start the next member, if there is one. Zero bytes after a member are padding, not a new member."""
        if self._member.eof:
            self._raw = self._raw.lstrip(b"\0")
            self._member = zlib.decompressobj(_GZIP) if self._raw else self._member
        self._is_in_member = bool(self._raw)

    def _decompress(self, size: int) -> bytes:
        before = self._member.copy()
        try:
            data = self._member.decompress(self._raw, size)
        except zlib.error as error:
            self._error = DataError(f"the compressed data is invalid: {error}")
            return _content_before_damage(before, self._raw, size)
        if self._member.eof:
            self._is_in_member, self._raw = False, self._member.unused_data
        else:
            self._raw = self._member.unconsumed_tail
        return data


def _content_before_damage(member: zlib._Decompress, raw: bytes, size: int) -> bytes:
    """Return at most `size` bytes of the content that precedes the first invalid byte in `raw`."""
    content = b""
    step = 1 << len(raw).bit_length()
    while step := step // 2:
        attempt = member.copy()
        try:
            content += attempt.decompress(raw[:step], size)
        except zlib.error:
            continue
        member, raw = attempt, raw[step:]
    return content
