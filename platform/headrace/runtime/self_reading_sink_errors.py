"""Handles the failed records of a self-reading sink, which reports the position of each failed record.

The platform reads the original records again to write them to the dead letter queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from itertools import islice
from typing import Any

from headrace.api.errors import ConnectError
from headrace.api.record_access import FailedRecord
from headrace.api.task import ErrantRecord
from headrace.runtime.dead_letter_queue import DeadLetterQueue, origin_of
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import DescribedFailure, ErrorLog, ErrorPolicy, Failure, Stage, tolerance_exceeded
from headrace.runtime.record_lookup import Found, Position

log = logging.getLogger(__name__)

_SENDS_MAX = 500
_SEND_BYTES_MAX = 16 << 20
"""Records that are sent to the dead letter queue at the same time."""
_SLICE_RECORDS = 5_000
"""Records that are reported at once. Only their failures are in memory, however many records are reported."""


class SelfReadingSinkErrors:
    """The error handling of one task. This object is also the task's errant record reporter.

    `read_records(positions)` reads records again. `from_loop` runs a coroutine on the event loop and waits for it.
    """

    def __init__(
        self,
        task: str,
        class_name: str,
        policy: ErrorPolicy,
        counters: ErrorCounters,
        *,
        queue: DeadLetterQueue | None,
        read_records: Callable[[Iterable[Position]], AsyncIterator[Found]],
        from_loop: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._task = task
        self._class_name = class_name
        self._policy = policy
        self._counters = counters
        self._log = ErrorLog(task, policy, counters)
        self._queue = queue
        self._read_records = read_records
        self._from_loop = from_loop

    @property
    def tolerates_errors(self) -> bool:
        """Whether errors.tolerance is `all`."""
        return self._policy.tolerate

    @property
    def needs_records(self) -> bool:
        """Whether each failed record must be reported: it is logged, dead-lettered, or fails the task."""
        return self._queue is not None or self._policy.log or not self._policy.tolerate

    def count(self, records: int) -> None:
        """Count skipped records that need not be reported."""
        assert not self.needs_records
        self._counters.add_failed_records(records, are_skipped=True)

    def report(self, records: Iterable[ErrantRecord | FailedRecord]) -> None:
        """Count and log records, write them to the dead letter queue, and wait until they are acknowledged.

        After that, raises ToleranceExceeded if errors are not tolerated. Raises ConnectError if the records cannot be
        written. `records` may be an iterator over any number of records: a few thousand of them are in memory.
        """
        first: tuple[Position, Failure] | None = None
        remaining = iter(records)
        while part := list(islice(remaining, _SLICE_RECORDS)):
            failures = {Position(each.topic, each.partition, each.offset): self._failure(each) for each in part}
            first = first or next(iter(failures.items()))
            self._report(failures)
        if first is not None and not self._policy.tolerate:
            raise tolerance_exceeded(first[1], _where(first[0]))

    def _report(self, failures: dict[Position, Failure]) -> None:
        if self._queue is None and not (self._policy.log and self._policy.log_messages):
            for position, failure in failures.items():
                self._log.add(failure, _where(position))
            return
        try:
            self._from_loop(self._report_originals(failures))
        except Exception as error:
            target = f"to the dead letter queue {self._queue.topic}" if self._queue is not None else "to the log"
            raise ConnectError(f"Could not write {len(failures)} failed records {target}: {error}") from error

    async def close(self) -> None:
        """Close the producer of the dead letter queue."""
        if self._queue is not None:
            await self._queue.close()

    def _failure(self, record: ErrantRecord | FailedRecord) -> Failure:
        if isinstance(record, FailedRecord):
            return DescribedFailure.of(record)
        return Failure(Stage(record.stage), self._class_name, record.error, 1)

    async def _report_originals(self, failures: dict[Position, Failure]) -> None:
        sends: list[Coroutine[Any, Any, None]] = []
        send_bytes = 0
        async for position, columns in self._read_records(failures):
            failure = failures[position]
            self._log.add(failure, _where(position), None if columns is None else columns.whole_values()[0])
            if self._queue is None:
                continue
            if columns is None:
                log.warning(
                    "Task %s: the failed record at %s was deleted from its topic and cannot be written to the dead "
                    "letter queue %s",
                    self._task,
                    _where(position),
                    self._queue.topic,
                )
                continue
            sends.append(self._queue.send_on_loop(failure, origin_of(*position), columns))
            send_bytes += sum(columns.value_lengths())
            if len(sends) >= _SENDS_MAX or send_bytes >= _SEND_BYTES_MAX:
                await asyncio.gather(*sends)
                sends, send_bytes = [], 0
        await asyncio.gather(*sends)


def _where(position: Position) -> str:
    return f"topic {position.topic}, partition {position.partition}, offset {position.offset}"
