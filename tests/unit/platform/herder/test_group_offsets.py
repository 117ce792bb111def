"""Tests of requests for a sink connector's offsets while no broker responds, or while a broker returns errors."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace.herder import group_offsets
from headrace.herder.errors import HerderError
from headrace.herder.group_offsets import GroupOffsets
from headrace.testing import KafkaBroker
from support.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> GroupOffsets:
    """Return a `GroupOffsets` object for a cluster without a reachable broker."""
    monkeypatch.setattr(group_offsets, "REQUEST_TIMEOUT_S", 0.2)
    return GroupOffsets({"bootstrap.servers": f"127.0.0.1:{free_port()}"})


async def test_request_for_sink_offsets_fails_after_a_timeout_while_no_broker_responds(offsets: GroupOffsets) -> None:
    started = time.monotonic()
    with pytest.raises(
        HerderError,
        match=r"Failed to retrieve consumer group offsets for sink connector c: no response from bootstrap.servers",
    ):
        await offsets.read("c", {"name": "c"})
    assert time.monotonic() - started < 60  # the usual timeout of a request


async def test_reset_and_alter_of_sink_offsets_fail_after_a_timeout_while_no_broker_responds(
    offsets: GroupOffsets,
) -> None:
    with pytest.raises(HerderError, match="Failed to reset consumer group offsets for connector c: no response"):
        await offsets.reset("c", {"name": "c"})
    with pytest.raises(HerderError, match="Failed to alter consumer group offsets for connector c: no response"):
        await offsets.alter("c", {"name": "c"}, [({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 1})])


def pair(topic: str, partition: int, offset: int | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    return {"kafka_topic": topic, "kafka_partition": partition}, None if offset is None else {"kafka_offset": offset}


@pytest.mark.parametrize("wanted", [pair("t", 7, 1), pair("absent", 0, 1), pair("absent", 0, None)])
async def test_changing_offsets_of_an_unknown_partition_fails_without_retries(
    kafka_broker: KafkaBroker, wanted: tuple[dict[str, Any], dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "REQUEST_TIMEOUT_S", 600.0)
    kafka_broker.create_topic("t", 1)
    offsets = GroupOffsets({"bootstrap.servers": kafka_broker.bootstrap_servers})
    await offsets.alter("c", {"name": "c"}, [pair("t", 0, 1)])
    partition = f"{wanted[0]['kafka_topic']}-{wanted[0]['kafka_partition']}"
    with pytest.raises(HerderError, match=f"group connect-c, {partition}: UNKNOWN_TOPIC_OR_PARTITION"):
        await asyncio.wait_for(offsets.alter("c", {"name": "c"}, [wanted]), 60)


async def test_request_that_is_retried_until_its_timeout_fails_with_the_broker_error(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "REQUEST_TIMEOUT_S", 1.0)
    kafka_broker.create_topic("t", 1)
    kafka_broker.fail("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS")
    offsets = GroupOffsets({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with pytest.raises(HerderError, match="within 1 s: group connect-c, t-0: COORDINATOR_LOAD_IN_PROGRESS"):
        await offsets.alter("c", {"name": "c"}, [pair("t", 0, 1)])


@pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"])
async def test_change_of_offsets_is_retried_after_a_temporary_error(kafka_broker: KafkaBroker, error: str) -> None:
    kafka_broker.create_topic("t", 1)
    kafka_broker.fail("OffsetCommit", error=error, times=1)
    offsets = GroupOffsets({"bootstrap.servers": kafka_broker.bootstrap_servers})
    await offsets.alter("c", {"name": "c"}, [pair("t", 0, 1)])
    assert await offsets.read("c", {"name": "c"}) == [pair("t", 0, 1)]
