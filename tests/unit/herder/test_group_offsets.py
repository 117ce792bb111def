"""Tests of requests that read or change a sink connector's offsets while no broker responds."""

from __future__ import annotations

import time

import pytest

from headrace.herder import group_offsets
from headrace.herder.errors import HerderError
from headrace.herder.group_offsets import GroupOffsets
from support.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> GroupOffsets:
    """Return the consumer group offsets of a cluster without a reachable broker."""
    monkeypatch.setattr(group_offsets, "REQUEST_TIMEOUT_S", 0.2)
    return GroupOffsets({"bootstrap.servers": f"127.0.0.1:{free_port()}"})


async def test_request_for_sink_offsets_fails_after_a_timeout_while_no_broker_responds(offsets: GroupOffsets) -> None:
    started = time.monotonic()
    with pytest.raises(
        HerderError,
        match=r"Failed to retrieve consumer group offsets for sink connector c: no response from bootstrap.servers",
    ):
        await offsets.read("c", {"name": "c"})
    assert time.monotonic() - started < 5


async def test_reset_and_alter_of_sink_offsets_fail_after_a_timeout_while_no_broker_responds(
    offsets: GroupOffsets,
) -> None:
    with pytest.raises(HerderError, match="Failed to reset consumer group offsets for connector c: no response"):
        await offsets.reset("c", {"name": "c"})
    with pytest.raises(HerderError, match="Failed to alter consumer group offsets for connector c: no response"):
        await offsets.alter("c", {"name": "c"}, [({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 1})])
