"""When to say again what goes on and on: at once, then after pauses that grow up to a minute.

Owned by whoever has something to say; the clock is an argument.
"""

from __future__ import annotations

_PAUSE_S_MIN = 5.0
_PAUSE_S_MAX = 60.0


class Telling:
    """One trouble: `is_due` each time it shows, `is_over` when it does not."""

    __slots__ = ("_again_s", "_pause_s")

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._again_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to say it now, which counts as said.  What has not shown for long begins anew."""
        if self._pause_s and now_s < self._again_s:
            return False
        is_new = not self._pause_s or now_s >= self._again_s + _PAUSE_S_MAX
        self._pause_s = _PAUSE_S_MIN if is_new else min(2 * self._pause_s, _PAUSE_S_MAX)
        self._again_s = now_s + self._pause_s
        return True

    def is_over(self) -> bool:
        """Whether there is an end to tell of; the next trouble is a new one."""
        was_told, self._pause_s = self._pause_s > 0, 0.0
        return was_told
