"""Encodes the JSON of the internal topics byte for byte as Kafka Connect's JsonConverter without schemas.

Numbers have Java's format, control characters are escaped with upper-case digits, and characters above U+FFFF become
two escaped surrogates. Equal keys must have equal bytes, because compaction and partitioning depend on the bytes.
This module does no I/O.
"""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.data.json_encoding import encode_tree, java_escapes
from headrace.data.json_values import EncodingOptions, to_json

_OPTIONS = EncodingOptions()
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(value: Any) -> bytes:
    """Encode a value of maps, lists and primitives. Maps keep their order. Raises DataError for other types."""
    tree = to_json(None, value, _OPTIONS)
    try:
        return encode_tree(tree)
    except (UnicodeEncodeError, OverflowError):
        # An unpaired surrogate, for example from the name of a file, or a number of more than 64 bits
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        text = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04X}", text)
        return java_escapes(text.encode())
