"""Handles a sink's failed records: log, dead letter queue, errant record reporter (KIP-298, KIP-610).

A DLQ record contains the original bytes of the failed record. If the task no longer references the fetched bytes, the
platform reads the record again from its topic. An offset commit waits until the DLQ records of the assigned partitions
are acknowledged.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace.api.converter import RawHeaders
from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.records import SinkRecord
from headrace.runtime.conversion import Converters, RawPart, original_position, take_columns
from headrace.runtime.dead_letter_queue import REENCODED_HEADER, DeadLetterQueue, origin_of
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import (
    ErrorLog,
    ErrorPolicy,
    Failure,
    Stage,
    ToleranceExceeded,
    tolerance_exceeded,
)
from headrace.runtime.sink_offsets import TopicPartition
from headrace_broker.records.columns import RecordColumns


@dataclass(frozen=True, slots=True)
class _FailedRecord:
    """A record that failed, and its original bytes."""

    failure: Failure
    topic: str
    partition: int
    offset: int
    columns: RecordColumns


class SinkErrors:
    """The error handling of one sink task. This object is also the task's errant record reporter.

    `read_record(topic, partition, offset)` reads a record again from its topic. `run` runs a coroutine on the event
    loop.
    """

    def __init__(
        self,
        task: str,
        class_name: str,
        policy: ErrorPolicy,
        converters: Converters,
        counters: ErrorCounters,
        *,
        queue: DeadLetterQueue | None,
        read_record: Callable[[str, int, int], Coroutine[Any, Any, RecordColumns | None]],
        run: Callable[[Coroutine[Any, Any, None]], Future[None]],
    ) -> None:
        self._class_name = class_name
        self._policy = policy
        self._converters = converters
        self._log = ErrorLog(task, policy, counters)
        self._queue = queue
        self._read_record = read_record
        self._run = run
        self._unsent: list[_FailedRecord] = []
        self._lock = threading.Lock()  # a task may report from any thread
        self._reports: list[tuple[TopicPartition, Future[Any]]] = []
        self._untolerated: ConnectError | None = None  # the first error that fails the task
        self._untolerated_offsets: dict[TopicPartition, int] = {}  # by partition, the first failed record

    def reporter(self) -> SinkErrors | None:
        """Return `context.errant_record_reporter`: None if neither a DLQ nor error logging is configured."""
        return self if self._queue is not None or self._policy.log else None

    # Methods of the errant record reporter

    def report(self, record: SinkRecord, error: Exception) -> Future[None]:
        """Handle a record that the task cannot store.

        After that, raises ToleranceExceeded if errors are not tolerated. The task fails even if it catches the
        exception.
        """
        try:
            return self.report_failed_put(record, error)
        except ToleranceExceeded as exceeded:
            topic, partition, offset = _record_position(record)
            with self._lock:
                self._untolerated = self._untolerated or exceeded
                first = self._untolerated_offsets.get((topic, partition), offset)
                self._untolerated_offsets[topic, partition] = min(first, offset)
            raise

    def report_failed_put(self, record: SinkRecord, error: Exception) -> Future[None]:
        """Handle a record for which `put` raised an error. Raises ToleranceExceeded if errors are not tolerated."""
        topic, partition, offset = _record_position(record)
        failure = Failure(Stage.TASK_PUT, self._class_name, error, 1)
        reported = self._report(failure, topic, partition, offset, record)
        if not self._policy.tolerate:
            raise tolerance_exceeded(failure, _where(topic, partition, offset))
        return reported

    def _report(self, failure: Failure, topic: str, partition: int, offset: int, record: SinkRecord) -> Future[None]:
        columns = _locate(record.raw, offset)
        self._count_and_log(failure, topic, partition, offset, columns)
        if self._queue is None:
            return _done()
        if columns is not None:
            future = self._queue.send(failure, origin_of(topic, partition, offset), columns)
        else:
            future = self._run(self._send_again(failure, topic, partition, offset, record))
        self._track(topic, partition, future)
        return _without_result(future)

    def report_at(self, batch: SinkBatch, index: int, error: Exception) -> Future[None]:
        """Handle the record at that index of a batch. Raises ToleranceExceeded if errors are not tolerated."""
        return self.report(batch.take([index]).to_records()[0], error)

    # Called by the stages before `put`

    def report_failure(self, failure: Failure, part: Any) -> None:
        """Handle a record that failed in a stage. `send_collected` sends the record to the dead letter queue."""
        topic, partition, offset = original_position(part)
        columns = _locate(_raw_columns(part), offset)
        self._count_and_log(failure, topic, partition, offset, columns)
        if self._queue is not None and columns is not None:
            self._unsent.append(_FailedRecord(failure, topic, partition, offset, columns))

    def describe(self, part: Any) -> str:
        """Describe the record: its topic, partition and offset."""
        return _where(*original_position(part))

    def send_collected(self) -> None:
        """Send the records that failed before `put`, in the order of their offsets and not of their failures."""
        if not self._unsent or self._queue is None:
            return
        unsent, self._unsent = self._unsent, []
        unsent.sort(key=lambda failed: (failed.topic, failed.partition, failed.offset))
        for each in unsent:
            future = self._queue.send(each.failure, origin_of(each.topic, each.partition, each.offset), each.columns)
            self._track(each.topic, each.partition, future)

    # Commits

    def raise_untolerated(self) -> None:
        """Raise the first ToleranceExceeded that the reporter has raised, because the task may have caught it."""
        if self._untolerated is not None:
            raise self._untolerated

    def before_untolerated(self, offsets: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """Return `offsets`, limited in each partition to the offset of the first failed record that fails the task."""
        limits = self._untolerated_offsets
        return {partition: min(offset, limits.get(partition, offset)) for partition, offset in (offsets or {}).items()}

    def wait_for_reports(self) -> None:
        """Wait until the DLQ records of all assigned partitions are acknowledged. Raises ConnectError."""
        self.send_collected()
        with self._lock:
            reports, self._reports = self._reports, []
        for _, future in reports:
            try:
                future.result()
            except Exception as error:
                assert self._queue is not None
                raise ConnectError(
                    f"Could not write a record to the dead letter queue {self._queue.topic}: {error}"
                ) from error

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop waiting for DLQ records of revoked partitions. These DLQ records are still written."""
        revoked = set(partitions)
        with self._lock:
            self._reports = [each for each in self._reports if each[0] not in revoked]

    async def close(self) -> None:
        """Close the producer of the dead letter queue."""
        if self._queue is not None:
            await self._queue.close()

    def _track(self, topic: str, partition: int, future: Future[Any]) -> None:
        with self._lock:
            self._reports = [each for each in self._reports if not _has_succeeded(each[1])]
            self._reports.append(((topic, partition), future))

    def _count_and_log(
        self, failure: Failure, topic: str, partition: int, offset: int, columns: RecordColumns | None
    ) -> None:
        self._log.add(failure, _where(topic, partition, offset), None if columns is None else columns.whole_values()[0])

    async def _send_again(self, failure: Failure, topic: str, partition: int, offset: int, record: SinkRecord) -> None:
        """Read a record again from its topic, because its fetched bytes were released, and send it to the DLQ."""
        assert self._queue is not None
        columns = await self._read_record(topic, partition, offset)
        if columns is None:
            columns = self._reencoded(record)
        await self._queue.send_on_loop(failure, origin_of(topic, partition, offset), columns)

    def _reencoded(self, record: SinkRecord) -> RecordColumns:
        """Convert a record to bytes again, because its topic no longer contains it."""
        converters, topic = self._converters, record.topic or ""
        headers: RawHeaders = [
            (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
            for header in record.headers
        ]
        key = converters.key.from_connect_with_headers(topic, headers, record.key_schema, record.key)
        value = converters.value.from_connect_with_headers(topic, headers, record.value_schema, record.value)
        headers.append((REENCODED_HEADER, b"true"))
        return RecordColumns(values=[value], keys=[key], headers=[headers], timestamps=record.timestamp)


def _locate(columns: RecordColumns | None, offset: int) -> RecordColumns | None:
    """Return the record with that offset from fetched records, or None if they do not contain it."""
    if columns is None or columns.offsets is None:
        return None
    index = bisect.bisect_left(columns.offsets, offset)
    if index == len(columns.offsets) or columns.offsets[index] != offset:
        return None
    return take_columns(columns, [index])


def _raw_columns(part: Any) -> RecordColumns | None:
    """Return the fetched bytes of a stage's input, which is a raw part, a partly converted part, or a batch."""
    if isinstance(part, RawPart):
        return part.columns
    raw = part.raw
    columns: RecordColumns | None = raw.columns if isinstance(raw, RawPart) else raw
    return columns


def _record_position(record: SinkRecord) -> tuple[str, int, int]:
    """Return topic, partition and offset from before the transforms. A record that a task created may lack these."""
    topic = record.original_topic or record.topic or ""
    partition = record.partition if record.original_partition is None else record.original_partition
    offset = record.offset if record.original_offset is None else record.original_offset
    return topic, partition or 0, offset


def _where(topic: str, partition: int, offset: int) -> str:
    return f"topic {topic}, partition {partition}, offset {offset}"


def _has_succeeded(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _without_result(acknowledged: Future[Any]) -> Future[None]:
    """Return a future that completes when `acknowledged` completes, but has no result."""
    future: Future[None] = Future()

    def complete(done: Future[Any]) -> None:
        error = done.exception()
        future.set_exception(error) if error is not None else future.set_result(None)

    acknowledged.add_done_callback(complete)
    return future
