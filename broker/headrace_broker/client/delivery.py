"""Tracks which records of a batch belong to which `send` call, and reports one result for each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.client.errors import ClientError


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The partition and offsets of the records of one `send`.

    `base_offset` is the first record's offset, or -1 if the broker returned no offset. If the records were sent to
    several partitions, partition and base offset are -1. If the records are in several batches, `parts` has one entry
    per batch. `log_append_time_ms` is the timestamp that the broker set (LogAppendTime), or -1 if the records keep
    their own timestamps.
    """

    topic: str
    partition: int
    base_offset: int
    count: int
    parts: tuple[RecordMetadata, ...] = ()
    log_append_time_ms: int = -1


Completion = Callable[[RecordMetadata | None, ClientError | None], None]
"""Called in the loop's thread with the metadata of a send's acknowledged parts (or None) and its error (or None)."""


class Delivery:
    """The delivery of the records of one `send` call.

    The records may be in several batches. The records in one batch are one part of the delivery.

    The delivery completes when the result of each part is known, and fails if any part has failed.
    """

    __slots__ = ("_error", "_listeners", "_on_done", "_parts", "_pending", "topic")

    def __init__(self, topic: str, on_done: Completion) -> None:
        self.topic = topic
        self._on_done = on_done
        self._pending = 1  # `seal` decrements it, so the delivery cannot complete before `seal`
        self._parts: list[RecordMetadata] = []
        self._error: ClientError | None = None
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Add a listener that is called after the delivery completes."""
        self._listeners.append(listener)

    def expect_part(self) -> None:
        """Add one part to the number of parts that the delivery waits for."""
        self._pending += 1

    def complete_part(self, partition: int, base_offset: int, count: int, log_append_time_ms: int = -1) -> None:
        """Mark one part as acknowledged: the broker appended `count` records to `partition` from `base_offset` on."""
        self._parts.append(RecordMetadata(self.topic, partition, base_offset, count, (), log_append_time_ms))
        self._finish_part()

    def fail_part(self, error: ClientError) -> None:
        """Mark one part as failed."""
        self._error = self._error or error
        self._finish_part()

    def seal(self) -> None:
        """Declare that no more parts will be added."""
        self._finish_part()

    def _finish_part(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._error is not None:
            self._on_done(self._combine_metadata() if self._parts else None, self._error)
        else:
            self._on_done(self._combine_metadata(), None)
        # Listeners refer to this delivery. Clear them, so that no reference cycle keeps it in memory.
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def _combine_metadata(self) -> RecordMetadata:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        count = sum(part.count for part in parts)
        if len({part.partition for part in parts}) == 1:
            return RecordMetadata(self.topic, parts[0].partition, parts[0].base_offset, count, tuple(parts))
        return RecordMetadata(self.topic, -1, -1, count, tuple(parts))


@dataclass(slots=True)
class DeliveryPart:
    """The `count` consecutive records of a batch that belong to one delivery."""

    delivery: Delivery
    count: int


def acknowledge(parts: list[DeliveryPart], partition: int, base_offset: int, log_append_time_ms: int = -1) -> None:
    """Mark each part of a batch as acknowledged, in the `Delivery` object of the part.

    `base_offset` is the base offset of the batch, or -1 if the base offset is unknown.
    """
    offset = base_offset
    for part in parts:
        part.delivery.complete_part(partition, offset, part.count, log_append_time_ms)
        if base_offset >= 0:
            offset += part.count


def fail(parts: list[DeliveryPart], error: ClientError) -> None:
    """Mark each part of a batch as failed with `error`, in the `Delivery` object of the part."""
    for part in parts:
        part.delivery.fail_part(error)


def split_parts(parts: list[DeliveryPart], count: int) -> tuple[list[DeliveryPart], list[DeliveryPart]]:
    """Return (parts of the first `count` records, parts of the remaining records).

    If the split falls inside a part, this part is replaced by two parts, and the delivery then waits for both of them.
    """
    first: list[DeliveryPart] = []
    rest: list[DeliveryPart] = []
    for part in parts:
        if count >= part.count:
            first.append(part)
        elif count > 0:
            part.delivery.expect_part()
            first.append(DeliveryPart(part.delivery, count))
            rest.append(DeliveryPart(part.delivery, part.count - count))
        else:
            rest.append(part)
        count = max(count - part.count, 0)
    return first, rest
