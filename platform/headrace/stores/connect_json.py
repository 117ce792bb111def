"""Encodes the JSON of the internal topics byte for byte as Kafka Connect's JsonConverter without schemas.

Numbers have Java's format, control characters are escaped with upper-case digits, and characters above U+FFFF become
two escaped surrogates. Equal keys must have equal bytes, because compaction and partitioning depend on the bytes.
This module does no I/O.
"""

from __future__ import annotations

from typing import Any

from headrace.data.json_encoding import encode_tree
from headrace.data.json_values import EncodingOptions, to_json

_OPTIONS = EncodingOptions()


def encode(value: Any) -> bytes:
    """Encode a value of maps, lists and primitives. Maps keep their order. Raises DataError for other types."""
    return encode_tree(to_json(None, value, _OPTIONS))
