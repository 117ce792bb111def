"""Tests of the records that a self-reading sink, which consumes its topics itself, reports as failed.

The platform reads these records again and writes their original bytes to the dead letter queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.api.errors import ConnectError, DataError
from headrace.api.record_access import FailedRecord
from headrace.api.task import ErrantRecord
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import ErrorPolicy, ToleranceExceeded
from headrace.runtime.record_lookup import Found, Position
from headrace.runtime.self_reading_sink_errors import SelfReadingSinkErrors
from headrace.runtime.spec import TaskSpec
from headrace_broker.records.columns import RecordColumns
from support.errors import error_policy

DELETED = 3
RECORDS = [ErrantRecord("t", 1, offset, DataError(f"bad {offset}"), "VALUE_CONVERTER") for offset in (2, DELETED, 9)]

DESCRIBED = FailedRecord(
    "t",
    1,
    9,
    "TRANSFORMATION",
    "org.example.Cast",
    "org.apache.kafka.connect.errors.DataException",
    "transform c: bad",
    "the stack trace",
)


class Producer:
    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[RecordColumns] = []
        self._error = error

    async def send(self, topic: str, partition: int, columns: RecordColumns) -> None:
        if self._error is not None:
            raise self._error
        self.sent.append(columns)


ReadRecords = Callable[[Iterable[Position]], AsyncIterator[Found]]


async def read_records(positions: Iterable[Position]) -> AsyncIterator[Found]:
    for position in positions:
        columns = RecordColumns([b"%d" % position.offset], keys=[b"k"], timestamps=[7], offsets=[position.offset])
        yield position, None if position.offset == DELETED else columns


def make(
    policy: ErrorPolicy, producer: Producer | None, read_records: ReadRecords = read_records
) -> tuple[SelfReadingSinkErrors, ErrorCounters]:
    spec = TaskSpec(connector="c", number=0, config={}, connector_config={}, worker={})
    counters = ErrorCounters()

    def from_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coroutine)

    queue = None
    if producer is not None:
        queue = DeadLetterQueue("dlq", spec, cast("Any", producer), counters, with_context=True)
    return SelfReadingSinkErrors(
        "c-0", "Task", policy, counters, queue=queue, read_records=read_records, from_loop=from_loop
    ), counters


def test_records_that_fail_in_a_sink_that_reads_its_topics_itself_are_sent_to_the_dlq_with_their_original_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Producer()
    errors, counters = make(error_policy(tolerate=True), producer)
    errors.report(RECORDS)
    assert [(columns.values, columns.keys, columns.timestamps) for columns in producer.sent] == [
        ([b"2"], [b"k"], [7]),
        ([b"9"], [b"k"], [7]),
    ]
    headers = dict((producer.sent[1].headers or [[]])[0])
    assert headers["__connect.errors.offset"] == b"9"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.message"] == b"bad 9"
    assert (counters.errors, counters.skipped) == (3, 3)
    assert "topic t, partition 1, offset 3 was deleted from its topic" in caplog.text


def test_reported_records_are_counted_and_logged_if_no_dead_letter_queue_is_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors, counters = make(error_policy(tolerate=True, log=True, log_messages=True), None)
    with caplog.at_level(logging.ERROR):
        errors.report(RECORDS[:1])
    assert "stage 'VALUE_CONVERTER' with class 'Task', where topic t, partition 1, offset 2, record value b'2'" in (
        caplog.text
    )
    assert counters.skipped == 1


def test_dlq_records_are_written_even_if_errors_are_not_tolerated() -> None:
    """The method `report` then raises ToleranceExceeded."""
    producer = Producer()
    errors, counters = make(error_policy(), producer)
    assert not errors.tolerates_errors
    with pytest.raises(ToleranceExceeded, match="topic t, partition 1, offset 2, stage VALUE_CONVERTER"):
        errors.report(RECORDS)
    assert [columns.values for columns in producer.sent] == [[b"2"], [b"9"]]
    assert (counters.errors, counters.skipped) == (3, 0)


def test_error_report_raises_an_exception_if_the_write_to_the_dead_letter_queue_fails() -> None:
    errors, _ = make(error_policy(tolerate=True), Producer(ValueError("too large")))
    with pytest.raises(ConnectError, match="Could not write 3 failed records to the dead letter queue dlq: too large"):
        errors.report(RECORDS)


def test_failure_that_another_process_has_described_has_the_headers_and_log_line_of_the_original_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Producer()
    errors, _ = make(error_policy(tolerate=True, log=True), producer)
    with caplog.at_level(logging.ERROR):
        errors.report([DESCRIBED])
    headers = dict((producer.sent[0].headers or [[]])[0])
    assert {name.removeprefix("__connect.errors."): text for name, text in headers.items()} == {
        "topic": b"t",
        "partition": b"1",
        "offset": b"9",
        "connector.name": b"c",
        "task.id": b"0",
        "stage": b"TRANSFORMATION",
        "class.name": b"org.example.Cast",
        "exception.class.name": b"org.apache.kafka.connect.errors.DataException",
        "exception.message": b"transform c: bad",
        "exception.stacktrace": b"the stack trace",
    }
    assert "stage 'TRANSFORMATION' with class 'org.example.Cast', where topic t, partition 1, offset 9: " in caplog.text
    assert caplog.text.endswith("transform c: bad\nthe stack trace\n")


def test_untolerated_failure_that_another_process_has_described_names_the_record_and_the_reason() -> None:
    errors, _ = make(error_policy(), None)
    expected = (
        "topic t, partition 1, offset 9, stage TRANSFORMATION, class org.example.Cast: transform c: DataError: bad"
    )
    with pytest.raises(ToleranceExceeded, match=expected):
        errors.report([DESCRIBED])


def test_any_number_of_records_can_be_reported_while_few_of_them_are_in_memory() -> None:
    producer, taken, waiting = Producer(), 0, []

    def records() -> Iterator[FailedRecord]:
        nonlocal taken
        for offset in range(10, 11_010):
            waiting.append(taken - len(producer.sent))
            taken += 1
            yield replace(DESCRIBED, offset=offset)

    errors, counters = make(error_policy(tolerate=True), producer)
    errors.report(records())
    assert (len(producer.sent), counters.errors) == (11_000, 11_000)
    assert max(waiting) <= 5_000


def test_records_must_be_reported_only_if_they_are_logged_or_dead_lettered_or_fail_the_task() -> None:
    counted, counters = make(error_policy(tolerate=True), None)
    assert not counted.needs_records
    counted.count(7)
    assert (counters.errors, counters.skipped) == (7, 7)
    for policy, producer in [
        (error_policy(), None),
        (error_policy(tolerate=True, log=True), None),
        (error_policy(tolerate=True), Producer()),
    ]:
        assert make(policy, producer)[0].needs_records


def test_only_a_few_large_records_wait_for_the_dead_letter_queue() -> None:
    """Records of 5 MB: 500 of them would need 2.5 GB."""
    producer, found, waiting = Producer(), 0, []
    value = bytes(5 << 20)

    async def read_large_records(positions: Iterable[Position]) -> AsyncIterator[Found]:
        nonlocal found
        for position in positions:
            found += 1
            waiting.append(found - len(producer.sent))
            yield position, RecordColumns([value], keys=[None], timestamps=[7], offsets=[position.offset])

    errors, _ = make(error_policy(tolerate=True), producer, read_large_records)
    errors.report([replace(DESCRIBED, offset=offset) for offset in range(50)])
    assert len(producer.sent) == 50
    assert max(waiting) == 4
