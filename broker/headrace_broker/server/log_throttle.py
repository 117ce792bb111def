"""Rate-limits log lines about a condition that persists.

The first line is logged immediately, later lines at growing intervals of up to a minute.
"""

from __future__ import annotations

_INTERVAL_S_MIN = 5.0
_INTERVAL_S_MAX = 60.0


class LogThrottle:
    """The rate limit for the log lines about one condition.

    Call `should_log` whenever the condition is observed, and `reset` when it has ended.
    """

    __slots__ = ("_interval_s", "_next_s")

    def __init__(self) -> None:
        self._interval_s = 0.0
        self._next_s = 0.0

    def should_log(self, now_s: float) -> bool:
        """Return whether to log the condition now, and if so, lengthen the interval until the next log line.

        If the condition was not observed for a long time, the intervals start again from the shortest interval.
        """
        if self._interval_s and now_s < self._next_s:
            return False
        is_new = not self._interval_s or now_s >= self._next_s + _INTERVAL_S_MAX
        self._interval_s = _INTERVAL_S_MIN if is_new else min(2 * self._interval_s, _INTERVAL_S_MAX)
        self._next_s = now_s + self._interval_s
        return True

    def reset(self) -> bool:
        """Mark the condition as ended. Return whether it was logged. The next occurrence is logged immediately."""
        was_logging, self._interval_s = self._interval_s > 0, 0.0
        return was_logging
