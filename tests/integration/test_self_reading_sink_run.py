"""Tests of `SelfReadingSinkRun`, with which authors test sinks that read topics themselves."""

from __future__ import annotations

import pytest

from headrace.api import Config, ConnectError, SelfReadingSinkTask
from headrace.testing import KafkaBroker, SelfReadingSinkRun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class CollectingTask(SelfReadingSinkTask[Config]):
    """Collects the values of the topic in `found`, and fails at the value "fail"."""

    found: list[str]

    def start(self, config: Config) -> None:
        self.found = []

    def run(self) -> None:
        position = self.context.committed_offsets().get(("t", 0), 0)
        rows = self.context.metrics.counter("rows-total", "Rows")
        with self.context.record_reader().open() as reader, self.context.record_pipeline(10).open() as pipeline:
            while self.context.wait(0.01):
                if self.context.pause_requested:
                    continue
                end = reader.log_bounds([("t", 0)])[1]["t", 0]
                for records in reader.read("t", 0, position, end):
                    result = pipeline.apply(records)
                    self.context.errant_record_reporter.report(result.errors)
                    for batch in result.batches:
                        self.found += batch.values
                        rows.add(len(batch))
                if "fail" in self.found:
                    raise ConnectError("failed")
                position = end
                self.context.report_offsets({("t", 0): end})


PROPS = {"topics": "t", "value.converter": "StringConverter", "errors.tolerance": "all"}


def test_task_runs_with_the_clients_of_a_worker_and_can_be_paused(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["a", "bad", "c"])
    dlq = {"errors.deadletterqueue.topic.name": "dlq", "errors.deadletterqueue.topic.replication.factor": "1"}
    encoding = {
        "transforms": "p",
        "transforms.p.type": "Python",
        "transforms.p.expression": "value.upper() if value != 'bad' else 1 / 0",
    }
    worker = {"python.transform.enable": "true"}
    props = {**PROPS, **dlq, **encoding}
    with SelfReadingSinkRun(
        CollectingTask, props, kafka_broker.bootstrap_servers, committed={("t", 0): 1}, worker=worker
    ) as run:
        run.wait_until(lambda: run.offsets == {("t", 0): 3})
        assert isinstance(run.task, CollectingTask)
        assert run.task.found == ["C"]
        assert [record.value for record in kafka_broker.consume("dlq", 1)] == [b"bad"]
        run.pause()
        run.wait_until(lambda: run.context.pause_requested)
        kafka_broker.produce("t", ["d"])
        run.resume()
        run.wait_until(lambda: run.offsets == {("t", 0): 4})
        assert run.metrics["rows-total"] == len(run.task.found)


def test_error_of_the_task_is_raised_in_the_test(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["fail"])
    with (
        pytest.raises(ConnectError, match="failed"),
        SelfReadingSinkRun(CollectingTask, PROPS, kafka_broker.bootstrap_servers) as run,
    ):
        run.wait_until(lambda: False)
