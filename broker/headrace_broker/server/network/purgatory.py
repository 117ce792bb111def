"""The purgatory: runs delayed operations on the event loop, with one timer for all deadlines.

An operation's payload is a function without arguments that sends the response. If an append completes an operation, the
purgatory calls this function after the append has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from headrace_broker.server.network.delayed_operations import DelayedOperation, DelayedOperations

if TYPE_CHECKING:
    from headrace_broker.server.network.connection import Connection

logger = logging.getLogger(__name__)


class Purgatory:
    """Runs `DelayedOperations` on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._operations = DelayedOperations()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.is_watched = self._operations.is_watched
        self._due: list[DelayedOperation] = []

    def now_ms(self) -> int:
        """Return the monotonic time that deadlines refer to."""
        return int(self._loop.time() * 1000)

    def watch(
        self,
        complete: Callable[[], None],
        keys: list[Hashable],
        wait_ms: int,
        *,
        missing_bytes: int | None = None,
        required_offsets: dict[Hashable, int] | None = None,
    ) -> DelayedOperation:
        """Call `complete` once: when the operation can complete, or after `wait_ms`.

        `keys` identify the partitions or the fetch session that the operation waits for. A fetch can complete when
        `missing_bytes` more bytes are available to read. A produce can complete when each partition has reached its
        offset in `required_offsets`.
        """
        operation = DelayedOperation(
            complete,
            keys,
            self.now_ms() + wait_ms,
            missing_bytes=missing_bytes,
            required_offsets=required_offsets,
        )
        self._operations.watch(operation)
        self._schedule_timer()
        return operation

    def watch_for_connection(
        self,
        connection: Connection,
        complete: Callable[[], None],
        keys: list[Hashable],
        wait_ms: int,
        *,
        missing_bytes: int | None = None,
        required_offsets: dict[Hashable, int] | None = None,
    ) -> None:
        """Call `complete` as `watch` does, unless the connection is closed first.

        Every delayed client request is registered with this method. When a connection is closed, the router cancels its
        delayed operations.
        """
        if connection.is_closing:
            return

        def run() -> None:
            connection.delayed_operations.pop(operation, None)
            complete()

        operation = self.watch(run, keys, wait_ms, missing_bytes=missing_bytes, required_offsets=required_offsets)
        connection.delayed_operations[operation] = None

    def try_complete(self, key: Hashable, end_offset: int, size_bytes: int) -> None:
        """Complete the operations on `key` that can complete now.

        The data of `key` has grown by `size_bytes` to `end_offset`. The purgatory sends the responses after the caller
        has returned.
        """
        self._complete_soon(self._operations.try_complete(key, end_offset, size_bytes))

    def force_complete(self, key: Hashable) -> None:
        """Complete all operations on `key` after the caller has returned.

        For example, the broker calls this method when the partition `key` was deleted.
        """
        self._complete_soon(self._operations.force_complete(key))

    def force_complete_now(self, key: Hashable) -> None:
        """Complete all operations on this key before returning."""
        for operation in self._operations.force_complete(key):
            _complete(operation)

    def cancel(self, operation: DelayedOperation) -> None:
        """Remove an operation whose client has disconnected."""
        self._operations.cancel(operation)

    def __len__(self) -> int:
        return len(self._operations)

    def produce_count(self) -> int:
        """Return the number of delayed produce requests. All other operations are fetch requests."""
        return self._operations.produce_count()

    def close(self) -> None:
        """Stop the timer. After this call, no operation expires."""
        if self._timer is not None:
            self._timer.cancel()

    def complete_due(self) -> None:
        """Run the scheduled completions immediately.

        The completions run in reverse order. A connection sends its responses in the order of the requests. If the
        earliest request completes last, one call sends all responses of the connection.
        """
        due, self._due = self._due, []
        for operation in reversed(due):
            _complete(operation)

    def _complete_soon(self, due: list[DelayedOperation]) -> None:
        if due and not self._due:
            self._loop.call_soon(self.complete_due)
        self._due += due

    def _schedule_timer(self) -> None:
        deadline_ms = self._operations.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(0, deadline_ms - self.now_ms()) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for operation in self._operations.expire(self.now_ms()):
            _complete(operation)
        self._schedule_timer()


def _complete(operation: DelayedOperation) -> None:
    try:
        operation.detach_payload()()
    except Exception:
        logger.exception("Purgatory: completing a delayed operation failed; the client receives no response")
