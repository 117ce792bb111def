"""How much memory requests may take while they come in, over all connections (`queued.max.request.bytes`).

Each connection has a receive buffer of up to `UNCOUNTED_BYTES` to itself; what a larger request needs beyond that is
taken from here. When there is no more, the connection is not read from until there is, and TCP holds its peer. What
remains possible then:

* Requests of the usual size go on: large ones may take three quarters of the bound only.
* Nothing stands still: one connection at a time, the *favoured* one, may go beyond the bound by its request.
* Who holds memory that others wait for, and sends next to nothing, is cut off by the router after a second or two.

So the bound holds but for one request. Kafka's default, -1, means a quarter of the machine's (or container's) memory
here, at most `DEFAULT_BYTES_MAX`. Owned by the event loop.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

UNCOUNTED_BYTES = 256 * 1024
LARGE_BYTES = 2 * 1024 * 1024
DEFAULT_BYTES_MAX = 1024 * 1024 * 1024


class Receiver(Protocol):
    """A connection, as the memory sees it."""

    def give_back_idle_buffer(self) -> None:
        """Shrink the receive buffer if there is nothing in it."""

    def memory_may_be_free(self) -> None:
        """Try again to take what was refused."""


class ReceiveMemory:
    """The bytes of all large receive buffers, and who waits for some."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, None] = {}
        self._favoured: Receiver | None = None
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether somebody waits, or has gone beyond the bound."""
        return bool(self._waiting) or self._favoured is not None

    def is_waiting(self, receiver: Receiver) -> bool:
        """Whether the receiver was refused memory and has not got it yet."""
        return receiver in self._waiting

    def holders(self) -> list[Receiver]:
        """Who has a large buffer."""
        return list(self._held)

    def take(self, receiver: Receiver, capacity_bytes: int, request_bytes: int) -> bool:
        """Let the receiver have a buffer of so many bytes in all, for a request that will have `request_bytes`.

        False: it waits, and is told when to try again.
        """
        allowed_bytes = self._bytes_max if request_bytes <= LARGE_BYTES else self._bytes_max * 3 // 4
        if not self._fits(receiver, capacity_bytes, allowed_bytes):
            for holder in self.holders():
                holder.give_back_idle_buffer()
            if not self._fits(receiver, capacity_bytes, allowed_bytes):
                if self._favoured not in (None, receiver):
                    self._waiting.pop(receiver, None)
                    self._waiting[receiver] = None
                    return False
                self._favoured = receiver
        self.used_bytes += capacity_bytes - self._held.get(receiver, 0)
        self._held[receiver] = capacity_bytes
        self._waiting.pop(receiver, None)
        self._wake_next()
        return True

    def _fits(self, receiver: Receiver, capacity_bytes: int, allowed_bytes: int) -> bool:
        beyond_bytes = self._held.get(self._favoured, 0) if self._favoured is not None else 0
        own_bytes = self._held.get(receiver, 0) if receiver is not self._favoured else 0
        return self.used_bytes - beyond_bytes - own_bytes + capacity_bytes <= allowed_bytes

    def give_back(self, receiver: Receiver) -> None:
        """The receiver's buffer is small again, or gone; whoever has waited longest tries again."""
        self._waiting.pop(receiver, None)
        self.used_bytes -= self._held.pop(receiver, 0)
        if self._favoured is receiver:
            self._favoured = None
        self._wake_next()

    def keep(self, size_bytes: int) -> None:
        """A request is kept beyond its arrival, while it is worked on: it counts, without waiting."""
        self.used_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """A request that was kept is done with."""
        self.used_bytes -= size_bytes
        self._wake_next()

    def _wake_next(self) -> None:
        for receiver in self._waiting:
            receiver.memory_may_be_free()
            return


def bytes_max(configured: int) -> int:
    """The bound for a value of `queued.max.request.bytes`."""
    return configured if configured > 0 else min(DEFAULT_BYTES_MAX, _memory_bytes() // 4)


def _memory_bytes() -> int:
    of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        of_container = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such file, or no limit
        return of_machine
    return min(of_machine, of_container)
