"""Stops a worker during the start of Spark. The worker must exit quickly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.worker import Worker, wait_for


@pytest.mark.spark
def test_worker_exits_quickly_without_errors_if_it_is_stopped_during_the_start_of_spark(tmp_path: Path) -> None:
    worker = Worker(
        tmp_path,
        {
            "value.converter.schemas.enable": "true",
            "task.shutdown.graceful.timeout.ms": "240000",
        },
    ).start()
    config = {"connector.class": "LakehouseSinkConnector", "topics": "t", "lakehouse.path": str(tmp_path / "tables")}
    worker.create("lakehouse", config)
    wait_for(lambda: "Starting Spark on Java" in worker.log(), "Spark is starting", 30)
    started = time.monotonic()
    worker.__exit__(None, None, None)
    assert time.monotonic() - started < 60  # less than task.shutdown.graceful.timeout.ms
    assert list((tmp_path / "tables").rglob("*.properties")) == []
    assert "Started Spark" not in worker.log()
    assert "Traceback" not in worker.log()
    assert "failed" not in worker.log()
