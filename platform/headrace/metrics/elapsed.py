"""Measures durations for log lines."""

from __future__ import annotations

import time


def ms_since(started_s: float) -> int:
    """Return the milliseconds since a value of `time.monotonic()`."""
    return round((time.monotonic() - started_s) * 1000)
