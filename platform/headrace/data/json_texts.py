"""JsonTexts: schemaless JSON objects that stay text until a Python object is needed, for sinks that write JSON.

A sink that writes values as JSON needs no Python objects: it writes the text that the topic contains. `json_texts`
checks each text completely. A later conversion to Python objects therefore cannot fail.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec

from headrace.data.columns import ColumnarValues

_check = msgspec.json.Decoder(msgspec.Raw).decode
# Numbers that a double cannot contain become infinite, as in headrace.converters.json_decoding.
_decode = msgspec.json.Decoder(float_hook=float).decode
_first_byte = itemgetter(0)
_OPENING_BRACE = ord("{")
_WHITESPACE = b" \t\n\r"
_LINE_BREAKS_TO_SPACES = bytes.maketrans(b"\n\r", b"  ")

# msgspec checks the syntax of a text that it does not decode, but neither the length of its integers nor its depth.
_SHORT_BYTES = 800
_DEPTH_MAX = 400
_DIGITS_MAX = 1000
_long_integer = re.compile(rb"[0-9]{%d}" % _DIGITS_MAX)


class JsonTexts(ColumnarValues):
    """JSON objects without a schema, each as one line of UTF-8 text. `items` converts them to maps."""

    __slots__ = ("texts",)

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Wrap texts that are known to be valid; for other texts, call `json_texts`."""
        super().__init__(len(texts))
        self.texts = texts

    def take(self, indexes: Sequence[int]) -> JsonTexts:
        """Return the values at these indexes."""
        return JsonTexts([self.texts[index] for index in indexes])

    def _make_items(self) -> list[Any]:
        return list(map(_decode, self.texts))


def json_texts(texts: Sequence[bytes]) -> JsonTexts | None:
    """Return JsonTexts if each text is a JSON object on one line that `items` can convert, otherwise None."""
    if not all(texts) or set(map(_first_byte, texts)) != {_OPENING_BRACE}:
        return None
    joined = b"".join(texts)
    if b"\n" in joined or b"\r" in joined or not _is_utf8(joined) or not all(map(_is_convertible, _long(texts))):
        return None
    try:
        deque(map(_check, texts), maxlen=0)
    except (msgspec.DecodeError, RecursionError):
        return None
    return JsonTexts(texts)


def on_one_line(text: bytes) -> bytes:
    """Return the text of a valid JSON object on one line, and any other text unchanged.

    Valid JSON contains line breaks only between its tokens, where a space has the same meaning.
    """
    if b"\n" not in text and b"\r" not in text and text[:1] == b"{":
        return text
    try:
        _check(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    line = text.strip(_WHITESPACE).translate(_LINE_BREAKS_TO_SPACES)
    return line if line[:1] == b"{" else text


def _is_utf8(joined: bytes) -> bool:
    """Whether the joined texts are valid UTF-8.

    Each single text is then valid too: it starts with a brace, so no character extends over two texts.
    """
    if joined.isascii():
        return True
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True


def _long(texts: Sequence[bytes]) -> list[bytes]:
    if max(map(len, texts)) <= _SHORT_BYTES:
        return []
    return [text for text in texts if len(text) > _SHORT_BYTES]


def _is_convertible(text: bytes) -> bool:
    """Whether Python can convert a long JSON text: no integer is too long, and the nesting is not too deep."""
    return text.count(b"{") + text.count(b"[") <= _DEPTH_MAX and not _long_integer.search(text)
