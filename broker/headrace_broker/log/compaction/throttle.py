"""The I/O throttle of the log cleaner (log.cleaner.io.max.bytes.per.second). The caller supplies the time."""

from __future__ import annotations


class CleanerThrottle:
    """Calculates how long to wait so that the cleaner's I/O stays below `bytes_per_second`.

    An idle period does not allow a higher rate afterwards.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at_s = 0.0

    def delay_s(self, size_bytes: int, now_s: float) -> float:
        """Return the number of seconds to wait after the cleaner has read or written `size_bytes`."""
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_second
        return self._free_at_s - now_s
