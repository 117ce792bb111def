"""Encodes and decodes text as Java's ``String`` does: with Java's byte order, and without errors.

Characters that a character set does not contain become question marks (U+FFFD in UTF-16 and UTF-32), and malformed
bytes become U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

MALFORMED = "headrace-java-malformed"
"""The name of Python's error handler that replaces malformed bytes with as many U+FFFD as Java does."""


def _replace_malformed(error: UnicodeError) -> tuple[str, int]:
    """Replace malformed bytes with one character. Python's handler ``replace`` ends some of them earlier than Java."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start, end = error.object, error.start, error.end
    if error.encoding.startswith("utf-16"):
        if error.reason == "illegal UTF-16 surrogate":
            end = start + 4  # Java also ignores the character that is not the second half of the pair
    elif error.encoding == "utf-8" and data[start] == 0xED and b"\xa0" <= data[start + 1 : start + 2] <= b"\xbf":
        end = start + 3 if b"\x80" <= data[start + 2 : start + 3] <= b"\xbf" else start + 2  # a surrogate
    return "\ufffd", min(end, len(data))


_SURROGATES = re.compile("[\ud800-\udfff]")
codecs.register_error(MALFORMED, _replace_malformed)


class Charset(NamedTuple):
    """A character set of Java. `codec` is the name of Python's codec without byte order marks."""

    codec: str
    mark: bytes
    """The byte order mark that Java writes."""
    marks: tuple[tuple[bytes, str], ...]
    """The byte order marks that determine the codec of bytes, with the codec."""

    def encode(self, text: str) -> bytes:
        """Return the bytes of the text."""
        if not text:
            return b""
        try:
            return self.mark + text.encode(self.codec)
        except UnicodeEncodeError:
            if not self.codec.startswith(("utf-16", "utf-32")):
                return self.mark + text.encode(self.codec, "replace")
            return self.mark + _SURROGATES.sub("\ufffd", text).encode(self.codec)

    def decode(self, data: bytes) -> str:
        """Return the text of the bytes."""
        for mark, codec in self.marks:
            if data.startswith(mark):
                return data[len(mark) :].decode(codec, MALFORMED)
        return data.decode(self.codec, MALFORMED)


_UNICODE = {
    "utf-16": Charset(
        "utf-16-be",
        codecs.BOM_UTF16_BE,
        ((codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le")),
    ),
    "utf-32": Charset("utf-32-be", b"", ((codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF32_LE, "utf-32-le"))),
}


def find_charset(name: str) -> Charset:
    """Return the character set with this name of Python or Java. Raises LookupError."""
    codec = codecs.lookup(name).name
    return _UNICODE.get(codec) or Charset(codec, b"", ())
