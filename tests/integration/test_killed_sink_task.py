"""Tests that a sink task whose process was killed continues immediately after its restart."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from support.broker import running_broker
from support.topics import write_topic
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

SESSION_TIMEOUT_S = 240
"""The session timeout of the task's consumer: much longer than the test waits."""
TIMEOUT_S = 60
STRING = "org.apache.kafka.connect.storage.StringConverter"


def test_partitions_of_a_killed_sink_task_are_consumed_before_the_session_of_the_killed_process_expires(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path) as broker, Worker(tmp_path, {"bootstrap.servers": broker.address}) as worker:
        file = tmp_path / "out.txt"
        write_topic(broker.address, "t", [(None, b"before")])
        config = {"connector.class": "FileStreamSink", "topics": "t", "file": str(file), "value.converter": STRING}
        config |= {"consumer.override.session.timeout.ms": str(SESSION_TIMEOUT_S * 1000)}
        worker.create("s", config | {"errors.restart.backoff.initial.ms": "100"})
        _wait_for_line(file, "before")
        next(each for each in psutil.Process(worker.pid).children(recursive=True) if each.name() == "s-0").kill()
        write_topic(broker.address, "t", [(None, b"after")])
        _wait_for_line(file, "after")


def _wait_for_line(file: Path, line: str) -> None:
    wait_for(
        lambda: file.exists() and line in file.read_text().split(),
        f"the sink has written {line!r}",
        TIMEOUT_S,
    )
