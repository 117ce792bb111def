"""The memory pool, shared by all connections, for requests that are being received (`queued.max.request.bytes`).

The pool counts only receive buffers of more than `UNCOUNTED_BYTES`. When the pool is exhausted, the broker stops
reading from a connection that needs a larger buffer, until memory is free, and TCP applies backpressure to the client.
Three rules keep the broker responsive when the pool is exhausted:

* Requests of the usual size are still received, because requests above `LARGE_BYTES` may use only three quarters of the
  pool.
* At least one request always proceeds: one connection at a time may exceed the limit by the size of its request. No
  other connection may do so until the request has been processed, even if its connection is closed earlier.
* The router closes a connection that holds memory from the pool and receives hardly any data for a second or two while
  other connections wait for memory.

Because of the second rule, memory exceeds the limit only by the requests of one connection: the request that it sends,
and the request that is processed. The default limit, -1 as in Kafka, stands for a quarter of the machine's (or
container's) memory, but at most `DEFAULT_BYTES_MAX`. All methods run on the event loop.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

UNCOUNTED_BYTES = 256 * 1024
LARGE_BYTES = 2 * 1024 * 1024
DEFAULT_BYTES_MAX = 1024 * 1024 * 1024


class MemoryPoolUser(Protocol):
    """The methods that the memory pool calls on a connection."""

    def release_idle_buffer(self) -> None:
        """Shrink the receive buffer if it is empty."""

    def retry_allocation(self) -> None:
        """Try again to allocate the memory that the pool refused."""


class RequestMemoryPool:
    """Counts the bytes of all large receive buffers, and tracks the connections that wait for memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._allocated: dict[MemoryPoolUser, int] = {}
        self._in_process: dict[MemoryPoolUser, int] = {}
        self._waiting: dict[MemoryPoolUser, None] = {}
        self._over_limit_user: MemoryPoolUser | None = None
        self.used_bytes = 0

    @property
    def is_under_pressure(self) -> bool:
        """Whether a connection waits for memory, or was allowed to exceed the pool's limit."""
        return bool(self._waiting) or self._over_limit_user is not None

    def is_waiting(self, user: MemoryPoolUser) -> bool:
        """Return whether the connection `user` waits for memory, because `try_allocate` returned False."""
        return user in self._waiting

    def is_in_process(self, user: MemoryPoolUser) -> bool:
        """Return whether a request of the connection `user` is being processed (`add_in_process`)."""
        return user in self._in_process

    def holders(self) -> list[MemoryPoolUser]:
        """Return the connections that hold memory from the pool."""
        return list(self._allocated)

    def try_allocate(self, user: MemoryPoolUser, capacity_bytes: int, request_bytes: int) -> bool:
        """Allocate a buffer of `capacity_bytes` for a request of `request_bytes`.

        The new buffer replaces the connection's old buffer.

        Returns False if too little memory is free; the connection then waits until the pool calls `retry_allocation`.
        """
        allowed_bytes = self._bytes_max if request_bytes <= LARGE_BYTES else self._bytes_max * 3 // 4
        if not self._fits(user, capacity_bytes, allowed_bytes):
            for holder in self.holders():
                holder.release_idle_buffer()
            if not self._fits(user, capacity_bytes, allowed_bytes):
                if self._over_limit_user not in (None, user):
                    self._waiting.pop(user, None)
                    self._waiting[user] = None
                    return False
                self._over_limit_user = user
        self.used_bytes += capacity_bytes - self._allocated.get(user, 0)
        self._allocated[user] = capacity_bytes
        self._waiting.pop(user, None)
        self._wake_next()
        return True

    def _fits(self, user: MemoryPoolUser, capacity_bytes: int, allowed_bytes: int) -> bool:
        over_limit, over_limit_bytes = self._over_limit_user, 0
        if over_limit is not None:
            over_limit_bytes = self._allocated.get(over_limit, 0) + self._in_process.get(over_limit, 0)
        own_bytes = self._allocated.get(user, 0) if user is not over_limit else 0
        return self.used_bytes - over_limit_bytes - own_bytes + capacity_bytes <= allowed_bytes

    def release(self, user: MemoryPoolUser) -> None:
        """Release all memory that the connection `user` has allocated from the pool.

        A request that is being processed still counts. After that, the connection that has waited longest for memory
        tries its allocation again.
        """
        self._waiting.pop(user, None)
        self.used_bytes -= self._allocated.pop(user, 0)
        self._end_use(user)

    def add_in_process(self, user: MemoryPoolUser, size_bytes: int) -> None:
        """Count a request of the connection `user` while it is processed, even if this exceeds the limit."""
        assert user not in self._in_process, "a connection processes one request at a time"
        self.used_bytes += size_bytes
        self._in_process[user] = size_bytes

    def release_in_process(self, user: MemoryPoolUser) -> None:
        """Stop counting the request of the connection `user`, because its processing has ended."""
        self.used_bytes -= self._in_process.pop(user)
        self._end_use(user)

    def _end_use(self, user: MemoryPoolUser) -> None:
        if self._over_limit_user is user and user not in self._allocated and user not in self._in_process:
            self._over_limit_user = None
        self._wake_next()

    def _wake_next(self) -> None:
        for user in self._waiting:
            user.retry_allocation()
            return


def request_memory_limit(configured: int) -> int:
    """Return the size of the request memory pool in bytes.

    `configured` is the value of `queued.max.request.bytes`. If it is not positive, the size depends on the memory of
    the machine or container.
    """
    return configured if configured > 0 else min(DEFAULT_BYTES_MAX, _memory_bytes() // 4)


def _memory_bytes() -> int:
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        container_bytes = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such file, or no limit
        return machine_bytes
    return min(machine_bytes, container_bytes)
