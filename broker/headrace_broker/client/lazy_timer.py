"""A timer with a cheap method `set`.

The method never moves a pending timer to a later time. The timer may therefore expire too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls `on_expired` at the time passed to `set`, or earlier.

    The timer expires earlier if it was already set to an earlier time. `on_expired` checks what is due, and sets the
    timer again. A client sets a timer for each request, but the response usually arrives long before the timer expires.
    Creating and cancelling a timer of the event loop for each request takes several percent of the CPU time of a small
    request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def set(self, due_s: float) -> None:
        """Set the timer to the event loop's time `due_s`, unless the timer is already set to an earlier time."""
        if self._handle is not None:
            if self._due_s <= due_s:
                return
            self._handle.cancel()
        self._due_s = due_s
        self._handle = self._loop.call_at(due_s, self._expire)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expire(self) -> None:
        self._handle = None
        self._on_expired()
