"""Tests of sink records that a converter, a transform or the task rejects.

The DLQ records contain the original bytes. Offset commits wait until the DLQ records are acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, cast

import pytest

from headrace.api.errors import ConfigError, ConnectError, DataError, RetriableError, UnknownField
from headrace.converters.string_converter import StringConverter
from headrace.data.batch import SinkBatch
from headrace.data.records import SinkRecord
from headrace.metrics import logs
from headrace.runtime.conversion import Converters, RawPart
from headrace.runtime.dead_letter_queue import REENCODED_HEADER, DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import Failure, Stage, ToleranceExceeded
from headrace.runtime.sink_errors import SinkErrors
from headrace.runtime.spec import TaskSpec
from headrace_broker.records.columns import RecordColumns
from support.errors import error_policy


class PluginError(DataError):
    """An error that a plug-in defines."""


class Producer:
    def __init__(self) -> None:
        self.sent: list[RecordColumns] = []
        self.futures: list[Future[None]] = []
        self.is_acknowledging = True

    def send_blocking(self, topic: str, partition: int, columns: RecordColumns) -> Future[None]:
        assert (topic, partition) == ("dlq", 0)
        self.sent.append(columns)
        future: Future[None] = Future()
        self.futures.append(future)
        if self.is_acknowledging:
            future.set_result(None)
        return future

    async def send(self, topic: str, partition: int, columns: RecordColumns) -> None:
        self.send_blocking(topic, partition, columns)


FETCHED = RecordColumns(
    [b"%d" % offset for offset in range(10, 20)], keys=None, timestamps=[0] * 10, offsets=list(range(10, 20))
)


async def read_nothing(topic: str, partition: int, offset: int) -> RecordColumns | None:
    return None


def run(coroutine: Coroutine[Any, Any, None]) -> Future[None]:
    asyncio.run(coroutine)
    future: Future[None] = Future()
    future.set_result(None)
    return future


def make(*, tolerate: bool = True, read_record: Any = read_nothing) -> tuple[SinkErrors, Producer, ErrorCounters]:
    spec = TaskSpec(connector="c", number=0, config={}, connector_config={}, worker={})
    producer, counters = Producer(), ErrorCounters()
    errors = SinkErrors(
        "c-0",
        "Task",
        error_policy(tolerate=tolerate),
        Converters(StringConverter(), StringConverter(), StringConverter()),
        counters,
        queue=DeadLetterQueue("dlq", spec, cast("Any", producer), counters, with_context=True),
        read_record=read_record,
        run=run,
    )
    return errors, producer, counters


def record(offset: int, value: str = "", raw: RecordColumns | None = FETCHED) -> SinkRecord:
    return SinkRecord(
        topic="renamed", partition=1, offset=offset, value=value, key="k",
        original_topic="t", original_partition=1, original_offset=offset, raw=raw,
    )  # fmt: skip


def fail(errors: SinkErrors, stage: Stage, offset: int) -> None:
    part = RawPart("t", 1, RecordColumns([b"%d" % offset], keys=None, timestamps=[0], offsets=[offset]))
    errors.report_failure(Failure(stage, "C", ValueError(stage.value), 1), part)


def offsets(producer: Producer) -> list[int]:
    headers = [dict((columns.headers or [[]])[0]) for columns in producer.sent]
    return [int(each["__connect.errors.offset"] or b"") for each in headers]


def test_dlq_records_of_conversion_and_transform_errors_are_sent_in_offset_order() -> None:
    errors, producer, counters = make()
    for stage, offset in [(Stage.VALUE_CONVERTER, 15), (Stage.VALUE_CONVERTER, 17), (Stage.TRANSFORMATION, 11)]:
        fail(errors, stage, offset)
    assert producer.sent == []
    errors.send_collected()
    assert offsets(producer) == [11, 15, 17]
    assert [columns.values for columns in producer.sent] == [[b"11"], [b"15"], [b"17"]]
    assert (counters.skipped, counters.errors, counters.dlq_requests) == (3, 3, 3)


def test_collected_dlq_records_are_sent_only_once() -> None:
    errors, producer, _ = make()
    fail(errors, Stage.TRANSFORMATION, 12)
    errors.wait_for_reports()
    errors.wait_for_reports()
    assert offsets(producer) == [12]


def test_reported_record_is_sent_to_the_dlq_immediately_with_its_original_bytes() -> None:
    errors, producer, _ = make()
    future = errors.report(record(16, "another value"), DataError("no"))
    assert future.done()
    assert [columns.values for columns in producer.sent] == [[b"16"]]
    batch = SinkBatch("t", ["x", "y"], partition=1, offsets=[13, 14], raw=FETCHED)
    errors.report_at(batch, 1, DataError("no"))
    assert producer.sent[-1].values == [b"14"]


def test_dlq_context_headers_contain_no_secrets_and_omit_the_middle_of_a_long_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = logs.Secrets()
    secrets.add(["hunter2-password"])
    monkeypatch.setattr(logs, "secrets", secrets)
    errors, producer, _ = make()
    errors.report(record(16), DataError(f"hunter2-password is wrong: \udc80{'x' * 2_000_000}"))
    headers = {name: value or b"" for name, value in (producer.sent[0].headers or [[]])[0]}
    for name in ("exception.message", "exception.stacktrace"):
        text = headers[f"__connect.errors.{name}"]
        assert b"hunter2" not in text
        assert rb" is wrong: \udc80xxx" in text
        assert b"characters omitted" in text
        assert len(text) < 100_000


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (DataError("no"), b"org.apache.kafka.connect.errors.DataException"),
        (UnknownField("no"), b"org.apache.kafka.connect.errors.DataException"),
        (RetriableError("no"), b"org.apache.kafka.connect.errors.RetriableException"),
        (ConnectError("no"), b"org.apache.kafka.connect.errors.ConnectException"),
        (ConfigError("key", "value"), b"org.apache.kafka.common.config.ConfigException"),
        (PluginError("no"), f"{__name__}.PluginError".encode()),
        (KeyError("no"), b"builtins.KeyError"),
    ],
)
def test_dlq_context_header_contains_the_class_name_that_kafka_connect_uses_for_the_error(
    error: Exception, name: bytes
) -> None:
    errors, producer, _ = make()
    errors.report(record(16), error)
    assert dict((producer.sent[0].headers or [[]])[0])["__connect.errors.exception.class.name"] == name


def test_future_of_an_error_report_completes_when_the_dlq_record_is_acknowledged() -> None:
    errors, producer, _ = make()
    producer.is_acknowledging = False
    future = errors.report(record(16), DataError("no"))
    assert not future.done()
    producer.futures[0].set_result(None)
    assert future.result(0) is None


def test_reported_record_is_read_again_if_its_original_bytes_are_no_longer_in_memory() -> None:
    async def read(topic: str, partition: int, offset: int) -> RecordColumns | None:
        assert (topic, partition, offset) == ("t", 1, 16)
        return RecordColumns([b"original"], keys=[b"key"], timestamps=[5], offsets=[16])

    errors, producer, _ = make(read_record=read)
    errors.report(record(16, "new", raw=None), DataError("no")).result(0)
    assert [(columns.values, columns.keys, columns.timestamps) for columns in producer.sent] == [
        ([b"original"], [b"key"], [5])
    ]


def test_dlq_record_is_encoded_again_if_the_consumed_record_was_deleted() -> None:
    """The topic no longer contains the original bytes. A header marks the new bytes as encoded again."""
    errors, producer, _ = make()
    errors.report(record(16, "new", raw=None), DataError("no")).result(0)
    assert producer.sent[0].values == [b"new"]
    assert (REENCODED_HEADER, b"true") in (producer.sent[0].headers or [[]])[0]


def test_reported_record_is_sent_to_the_dlq_even_if_errors_are_not_tolerated() -> None:
    """The method `report` then raises ToleranceExceeded."""
    errors, producer, counters = make(tolerate=False)
    with pytest.raises(
        ToleranceExceeded, match="topic t, partition 1, offset 16, stage TASK_PUT, class Task: DataError: no"
    ):
        errors.report(record(16), DataError("no"))
    assert offsets(producer) == [16]
    assert (counters.errors, counters.skipped) == (1, 0)


def test_method_wait_for_reports_raises_errors_of_assigned_partitions_and_ignores_revoked_partitions() -> None:
    errors, producer, _ = make()
    producer.is_acknowledging = False
    errors.report(record(16), DataError("no"))
    errors.release([("t", 1)])
    errors.wait_for_reports()  # this call does not wait for the revoked partition's report
    errors.report(record(17), DataError("no"))
    producer.futures[1].set_exception(ValueError("too large"))
    with pytest.raises(ConnectError, match="Could not write a record to the dead letter queue dlq: too large"):
        errors.wait_for_reports()
