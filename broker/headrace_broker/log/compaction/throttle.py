"""Keep reading and writing to so many bytes a second on average. Pure."""

from __future__ import annotations


class Throttle:
    """Says how long to wait; idle time does not add up to a burst later."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at_s = 0.0

    def delay_s(self, size_bytes: int, now_s: float) -> float:
        """Return for how long to wait after `size_bytes` were moved just now."""
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_second
        return self._free_at_s - now_s
