"""Tests of a source whose records all fail in a transform: the dead letter queue limits the speed of the task."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support.broker import running_broker
from support.topics import end_offset, read_topic
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

RECORDS = 8_000
FAILURES = re.compile(r"^kafka_connect_task_error_total_record_failures\{.*\} (\S+)$", re.MULTILINE)


def failures(worker: Worker) -> float:
    return sum(float(count) for count in FAILURES.findall(worker.request("GET", "/metrics")))


def stable_failures(worker: Worker) -> float:
    """Return the number of failed records after it has not changed for two seconds."""
    count, since_s = failures(worker), time.monotonic()

    def is_stable() -> bool:
        nonlocal count, since_s
        if (current := failures(worker)) != count:
            count, since_s = current, time.monotonic()
        return time.monotonic() - since_s > 2

    wait_for(is_stable, "the task waits", 30)
    return count


def test_source_whose_records_all_fail_waits_for_its_dead_letter_queue_and_loses_no_record(tmp_path: Path) -> None:
    """While SIGSTOP freezes the broker, the task waits for buffer memory, and it can be stopped during this wait.

    The file receives all lines but the first while the broker is frozen, so that the buffer memory alone determines how
    many records the task reads, whatever the speed of the machine.
    """
    file = tmp_path / "in.txt"
    file.write_text("line 0\n")
    settings = {"offset.storage.file.filename": str(tmp_path / "offsets"), "offset.flush.timeout.ms": "1000"}
    with (
        running_broker(tmp_path) as broker,
        Worker(tmp_path, {**settings, "bootstrap.servers": broker.address}) as worker,
    ):
        worker.create("source", {
            "connector.class": "FileStreamSource", "file": str(file), "topic": "lines", "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1",
            "errors.deadletterqueue.context.headers.enable": "true", "transforms": "e",
            "transforms.e.type": "ExtractField$Value", "transforms.e.field": "missing",
            "producer.override.buffer.memory": "1000000",
        })  # fmt: skip
        wait_for(lambda: end_offset(broker.address, "dead", 0) == 1, "the first failed record")
        broker.send_signal(signal.SIGSTOP)
        try:
            with file.open("a") as lines:
                lines.writelines(f"line {number}\n" for number in range(1, RECORDS))
            wait_for(lambda: failures(worker) > 1, "more failed records")
            reported = stable_failures(worker)
            worker.request("PUT", "/connectors/source/stop")
        finally:
            broker.send_signal(signal.SIGCONT)
        print(f"{reported:.0f} records fill the buffer memory")
        assert reported < RECORDS / 2, "the task does not wait for buffer memory"
        assert "Graceful stop of source-0 failed" not in worker.log()
        worker.request("PUT", "/connectors/source/resume")
        offset = [{"partition": {"filename": str(file)}, "offset": {"position": file.stat().st_size}}]
        wait_for(lambda: worker.request("GET", "/connectors/source/offsets") == {"offsets": offset}, "the offset", 60)
        values = {json.loads(record.value() or b"")["value"] for record in read_topic(broker.address, "dead")}
        assert values == {f"line {number}" for number in range(RECORDS)}


def test_source_task_fails_after_its_dead_letter_queue_topic_was_deleted(tmp_path: Path) -> None:
    """The error text contains max.block.ms, which limits the wait for the topic's metadata."""
    file = tmp_path / "in.txt"
    file.touch()
    with (
        running_broker(tmp_path, auto_create_topics_enable="false") as broker,
        Worker(tmp_path, {"bootstrap.servers": broker.address}) as worker,
    ):
        worker.create("source", {
            "connector.class": "FileStreamSource", "file": str(file), "topic": "lines", "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1",
            "transforms": "e", "transforms.e.type": "ExtractField$Value", "transforms.e.field": "missing",
            "producer.override.max.block.ms": "1000",
        })  # fmt: skip
        worker.wait_for_task_state("source", 0, "RUNNING")
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.delete_topics(["dead"])["dead"].result(20)
        file.write_text("line\n")
        worker.wait_for_task_state("source", 0, "FAILED")
        assert "no metadata of topic dead within max.block.ms=1000: " in worker.status("source")["tasks"][0]["trace"]
