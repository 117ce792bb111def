"""Processes data that is nested as deeply as Kafka Connect's JSON may be: 1000 levels."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

JSON_DEPTH_MAX = 1000
"""The maximum depth of the JSON that Jackson reads and writes."""

_FRAMES_PER_LEVEL = 4
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow the recursion that data with `JSON_DEPTH_MAX` levels needs. Use it only after a RecursionError."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + JSON_DEPTH_MAX * _FRAMES_PER_LEVEL)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def json_depth(data: bytes) -> int:
    """Return the maximum depth of the arrays and objects in JSON text."""
    steps = (1 if byte in b"[{" else -1 for byte in _JSON_STRING.sub(b"", data) if byte in b"[{]}")
    return max(accumulate(steps), default=0)
