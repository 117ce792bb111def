"""Runs the parked operations on the event loop: one timer, and completions after the append that caused them.

A parked operation's payload is a function without arguments that answers the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

from headrace_broker.server.network.parked import Parked, ParkedOperations

logger = logging.getLogger(__name__)


class Waiting:
    """The loop's side of `ParkedOperations`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._operations = ParkedOperations()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.waiting_for = self._operations.waiting_for
        self._due: list[Parked] = []

    def now_ms(self) -> int:
        """The clock of deadlines: monotonic."""
        return int(self._loop.time() * 1000)

    def park(
        self,
        complete: Callable[[], None],
        keys: list[Hashable],
        wait_ms: int,
        *,
        missing_bytes: int | None = None,
        required_offsets: dict[Hashable, int] | None = None,
    ) -> Parked:
        """Call `complete` once, when due or after `wait_ms`."""
        operation = Parked(
            complete,
            keys,
            self.now_ms() + wait_ms,
            missing_bytes=missing_bytes,
            required_offsets=required_offsets,
        )
        self._operations.park(operation)
        self._arm()
        return operation

    def advanced(self, key: Hashable, high_watermark: int, size_bytes: int) -> None:
        """A partition's committed data grew; whoever is due answers as soon as the caller is done."""
        self._soon(self._operations.advanced(key, high_watermark, size_bytes))

    def disturbed(self, key: Hashable) -> None:
        """A partition went away or changed hands: whoever waits for it answers."""
        self._soon(self._operations.disturbed(key))

    def complete(self, key: Hashable) -> None:
        """Answer whoever waits for this, here and now."""
        for operation in self._operations.disturbed(key):
            _complete(operation)

    def cancel(self, operation: Parked) -> None:
        """The client is gone."""
        self._operations.cancel(operation)

    def __len__(self) -> int:
        return len(self._operations)

    def produces(self) -> int:
        """How many wait for replicas rather than for bytes."""
        return self._operations.produces()

    def close(self) -> None:
        """No further completions."""
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Answer whoever is due here and now.

        Last first: an answer waits for those of earlier requests, so what a connection is owed leaves with one call.
        """
        due, self._due = self._due, []
        for operation in reversed(due):
            _complete(operation)

    def _soon(self, due: list[Parked]) -> None:
        if due and not self._due:
            self._loop.call_soon(self.flush)
        self._due += due

    def _arm(self) -> None:
        deadline_ms = self._operations.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(0, deadline_ms - self.now_ms()) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for operation in self._operations.expired(self.now_ms()):
            _complete(operation)
        self._arm()


def _complete(operation: Parked) -> None:
    try:
        operation.take_payload()()
    except Exception:
        logger.exception("a waiting request could not be answered")
