"""Acknowledgements: which `send` calls a record batch carries records of, and what each call is told in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.client.errors import ClientError


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where the records of one `send` are. `base_offset` is the first record's, -1 when the broker did not say.

    Records that went to several partitions have partition and base offset -1 and one entry per batch in `parts`.
    """

    topic: str
    partition: int
    base_offset: int
    count: int
    parts: tuple[RecordMetadata, ...] = ()


Completion = Callable[[RecordMetadata | None, ClientError | None], None]
"""Told the outcome of a `send` in the loop's thread. With an error comes what was acknowledged all the same, if any."""


class Delivery:
    """One `send` call: done when every part of it is acknowledged, failed when one part is (after all are known)."""

    __slots__ = ("_error", "_listeners", "_on_done", "_parts", "_pending", "topic")

    def __init__(self, topic: str, on_done: Completion) -> None:
        self.topic = topic
        self._on_done = on_done
        self._pending = 1  # the sender's own, until it has handed in all parts
        self._parts: list[RecordMetadata] = []
        self._error: ClientError | None = None
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, too, when everything is known."""
        self._listeners.append(listener)

    @property
    def is_waiting(self) -> bool:
        """True while at least one part, beside the sender's own, is not known yet."""
        return self._pending > 1

    def expect_part(self) -> None:
        """Count one part more to wait for."""
        self._pending += 1

    def part_done(self, partition: int, base_offset: int, count: int) -> None:
        """Take the acknowledgement of one part."""
        self._parts.append(RecordMetadata(self.topic, partition, base_offset, count))
        self._finish_part()

    def part_failed(self, error: ClientError) -> None:
        """Take the failure of one part."""
        self._error = self._error or error
        self._finish_part()

    def sealed(self) -> None:
        """All parts have been handed in."""
        self._finish_part()

    def _finish_part(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._error is not None:
            self._on_done(self._summary() if self._parts else None, self._error)
        else:
            self._on_done(self._summary(), None)
        listeners, self._listeners = self._listeners, []  # they know this delivery: a circle would outlive it
        for listener in listeners:
            listener()

    def _summary(self) -> RecordMetadata:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        count = sum(part.count for part in parts)
        if len({part.partition for part in parts}) == 1:
            return RecordMetadata(self.topic, parts[0].partition, parts[0].base_offset, count, tuple(parts))
        return RecordMetadata(self.topic, -1, -1, count, tuple(parts))


@dataclass(slots=True)
class Share:
    """The records of a batch that belong to one delivery: `count` of them."""

    delivery: Delivery
    count: int


def acknowledge(shares: list[Share], partition: int, base_offset: int) -> None:
    """Tell every delivery in a batch that begins at `base_offset` (-1 = unknown)."""
    offset = base_offset
    for share in shares:
        share.delivery.part_done(partition, offset, share.count)
        if base_offset >= 0:
            offset += share.count


def fail(shares: list[Share], error: ClientError) -> None:
    """Tell every delivery in a batch that it failed."""
    for share in shares:
        share.delivery.part_failed(error)


def cut(shares: list[Share], count: int) -> tuple[list[Share], list[Share]]:
    """Return (shares of the first `count` records, shares of the rest); a delivery on both sides waits for both."""
    first: list[Share] = []
    rest: list[Share] = []
    for share in shares:
        if count >= share.count:
            first.append(share)
        elif count > 0:
            share.delivery.expect_part()
            first.append(Share(share.delivery, count))
            rest.append(Share(share.delivery, share.count - count))
        else:
            rest.append(share)
        count = max(count - share.count, 0)
    return first, rest
