"""A worker is stopped while Spark starts: soon, in good order, without a trace."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.worker import Worker, wait_for


@pytest.mark.spark
def test_stopping_while_spark_starts_is_quick_and_quiet(tmp_path: Path) -> None:
    worker = Worker(tmp_path, {"value.converter.schemas.enable": "true"}).start()
    config = {"connector.class": "LakehouseSinkConnector", "topics": "t", "lakehouse.path": str(tmp_path / "tables")}
    worker.create("lakehouse", config)
    wait_for(lambda: "Spark starts" in worker.log(), "Spark starts", 30)
    began = time.monotonic()
    worker.__exit__(None, None, None)
    assert time.monotonic() - began < 4.5  # task.shutdown.graceful.timeout.ms is 5000
    assert "is ready" not in worker.log()
    assert "Traceback" not in worker.log()
    assert "failed" not in worker.log()
