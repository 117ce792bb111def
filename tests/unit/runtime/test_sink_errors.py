"""DLQ records are counted one by one and sent in the order of their offsets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from headrace.runtime.conversion import RawPart
from headrace.runtime.sink_errors import SinkErrors
from headrace.runtime.spec import TaskSpec
from headrace.runtime.tolerance import ErrorPolicy, Failure, Stage
from headrace.runtime.worker_task import Counters
from headrace_broker.records.columns import RecordColumns

CONFIG = {"errors.deadletterqueue.topic.name": "dlq", "errors.deadletterqueue.context.headers.enable": "true"}


class Writer:
    def __init__(self) -> None:
        self.sent: list[RecordColumns] = []

    def send_blocking(self, topic: str, partition: int, columns: RecordColumns) -> Future[None]:
        assert (topic, partition) == ("dlq", 0)
        self.sent.append(columns)
        written: Future[None] = Future()
        written.set_result(None)
        return written


def make() -> tuple[SinkErrors, Writer, Any]:
    spec = TaskSpec(connector="c", number=0, config={}, connector_config={}, worker={})
    unit: Any = SimpleNamespace(spec=spec, plugins=SimpleNamespace(connector_config=CONFIG), counters=Counters())
    errors = SinkErrors(unit, ErrorPolicy(tolerate=True), None)  # type: ignore[arg-type]
    writer = Writer()
    errors._writer = writer  # type: ignore[assignment]
    values: list[bytes | None] = [b"%d" % offset for offset in range(10, 20)]
    errors.current = RawPart("t", 1, RecordColumns(values, keys=None, timestamps=[0] * 10, offsets=list(range(10, 20))))
    return errors, writer, unit


def fail(errors: SinkErrors, stage: Stage, offset: int) -> None:
    part = RawPart("t", 1, RecordColumns([b""], keys=None, timestamps=[0], offsets=[offset]))
    errors.report_failure(Failure(stage, "C", ValueError(stage.value), 1), part)


def offsets(writer: Writer) -> list[int]:
    headers = [dict((columns.headers or [[]])[0]) for columns in writer.sent]
    return [int(each["__connect.errors.offset"] or b"") for each in headers]


def test_dlq_records_are_sent_in_offset_order() -> None:
    errors, writer, unit = make()
    for stage, offset in [
        (Stage.VALUE_CONVERTER, 15),
        (Stage.VALUE_CONVERTER, 17),
        (Stage.TRANSFORMATION, 11),
        (Stage.TASK_PUT, 16),
    ]:
        fail(errors, stage, offset)
    assert writer.sent == []
    errors.send_letters()
    assert offsets(writer) == [11, 15, 16, 17]
    assert [columns.values for columns in writer.sent] == [[b"11"], [b"15"], [b"16"], [b"17"]]
    assert unit.counters.skipped == unit.counters.errors == 4


def test_commit_waits_for_unacknowledged_dlq_records() -> None:
    errors, writer, _ = make()
    fail(errors, Stage.TASK_PUT, 12)
    errors.wait_for_reports()
    assert offsets(writer) == [12]
    errors.wait_for_reports()
    assert offsets(writer) == [12]
