"""Tests of requests to a distributed herder while no broker responds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.herder.distributed import DistributedHerder
from headrace.herder.errors import HerderError
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores import kafka_config_store
from headrace.stores.topic_log import TopicLog
from support.herder import SlowWorker

pytestmark = pytest.mark.anyio

CONFIG = WorkerConfig.distributed({
    "key.converter": "K", "value.converter": "V", "group.id": "g", "config.storage.topic": "c",
    "offset.storage.topic": "o", "status.storage.topic": "s",
})  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_log_line_about_a_log_level_that_cannot_be_written_to_the_config_topic_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait_forever(_log: TopicLog) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(TopicLog, "read_to_end", wait_forever)
    monkeypatch.setattr(kafka_config_store, "WRITE_TIMEOUT_S", 0.01)
    herder = DistributedHerder(CONFIG, "worker:1", "http://worker:1/", SlowWorker().with_events)  # type: ignore[arg-type]
    with pytest.raises(HerderError, match="Failed to write to config topic"):
        await herder.set_group_log_level("headrace", "INFO")
    text = "writing the log level of headrace to the config topic failed: no response within 0.01 s"
    assert text in caplog.text
