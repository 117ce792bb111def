"""Tests of the dead letter queue of a source task: a full producer buffer, and records that are not accepted."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from headrace.api.errors import ConnectError, DataError
from headrace.data.batch import SourceBatch
from headrace.data.schema import STRING_SCHEMA
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import Failure, Stage
from headrace.runtime.source_errors import SourceErrors
from headrace.runtime.spec import TaskSpec
from headrace_broker.client.delivery import Completion, RecordMetadata
from headrace_broker.client.errors import BufferExhaustedError, ClientError, ClosedError, TimedOutError
from headrace_broker.records.columns import RecordColumns
from support.errors import error_policy

PART = SourceBatch(
    "t", ["a", "b"], value_schema=STRING_SCHEMA, source_partition={"file": "f"}, source_offset={"n": 2}
).take([0])
FAILURE = Failure(Stage.TRANSFORMATION, "C", DataError("bad"), 1, "mask")
METADATA = RecordMetadata("dlq", 0, 0, 1)


class Producer:
    """Raises the errors in `send_errors`, one for each send, and then accepts records."""

    max_block_ms = 0

    def __init__(self, *send_errors: ClientError) -> None:
        self.sent: list[tuple[RecordColumns, Completion]] = []
        self.send_errors = list(send_errors)

    def send_with_callback(
        self, topic: str, partition: int, columns: RecordColumns, on_done: Completion, *, timeout_ms: float
    ) -> None:
        assert (topic, partition) == ("dlq", 0)
        if self.send_errors:
            raise self.send_errors.pop(0)
        self.sent.append((columns, on_done))


class Ending:
    """Simulates a task that ends: call number `ending_at` of `raise_if_ending` raises ClosedError."""

    def __init__(self, ending_at: int | None = None) -> None:
        self.checks = 0
        self.ending_at = ending_at

    def raise_if_ending(self) -> None:
        self.checks += 1
        if self.checks == self.ending_at:
            raise ClosedError("the task is being stopped")


def make(producer: Producer, ending: Ending | None = None) -> SourceErrors:
    spec = TaskSpec(connector="c", number=0, config={}, connector_config={}, worker={})
    errors = SourceErrors(
        "c-0", error_policy(tolerate=True), ErrorCounters(), raise_if_ending=(ending or Ending()).raise_if_ending
    )
    errors.queue = DeadLetterQueue("dlq", spec, cast("Any", producer), ErrorCounters(), with_context=True)
    return errors


def test_dlq_record_of_a_source_is_sent_when_the_producer_buffer_is_no_longer_full() -> None:
    producer = Producer(BufferExhaustedError("full"), BufferExhaustedError("full"))
    results: list[ConnectError | None] = []
    make(producer).send(FAILURE, PART, results.append)
    [(columns, on_done)] = producer.sent
    assert json.loads(columns.values[0] or b"")["value"] == "a"
    assert dict((columns.headers or [[]])[0])["__connect.errors.exception.message"] == b"transform mask: bad"
    assert results == []
    on_done(METADATA, None)
    assert results == [None]


def test_send_that_waits_for_buffer_memory_ends_when_the_task_is_stopped() -> None:
    producer = Producer(*[BufferExhaustedError("full")] * 10)
    with pytest.raises(ClosedError, match="the task is being stopped"):
        make(producer, Ending(4)).send(FAILURE, PART, lambda error: None)
    assert len(producer.send_errors) == 7
    assert producer.sent == []


def test_missing_metadata_of_the_dead_letter_queue_topic_raises_an_error_after_max_block_ms() -> None:
    with pytest.raises(ConnectError, match="Could not write a record to the dead letter queue dlq: no metadata"):
        make(Producer(TimedOutError("no metadata"))).send(FAILURE, PART, lambda error: None)


def test_error_of_a_failed_write_to_the_dead_letter_queue_names_the_queue() -> None:
    producer = Producer()
    results: list[ConnectError | None] = []
    columns = RecordColumns([b"\xff"], keys=[b"k"])
    make(producer).send_unwritten("t", columns, PART, ClientError("rejected"), results.append)
    [(sent, on_done)] = producer.sent
    record = json.loads(sent.values[0] or b"")
    assert (record["key"], record["value"], record["source_offset"]) == ("k", {"base64": "/w=="}, {"n": 2})
    on_done(None, ClientError("too large"))
    assert [str(error) for error in results] == ["Could not write a record to the dead letter queue dlq: too large"]
