"""Tests that `TopicLog` handles new partitions, deletion and recreation of its internal topic, with a real broker.

A worker reads and writes its internal topics with `TopicLog`, which corresponds to Kafka Connect's KafkaBasedLog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from headrace.stores import topic_log
from headrace.stores.topic_log import TopicDeletedError, TopicLog, TopicLogs, TopicRecord
from headrace_broker.client.admin import Admin, NewTopic
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError
from support.broker import BrokerProcess, running_broker

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

KEYS = [f"key-{number}".encode() for number in range(20)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process


def properties(broker: BrokerProcess) -> dict[str, str]:
    return {"bootstrap.servers": broker.address, "metadata.max.age.ms": "200"}


@asynccontextmanager
async def opened_admin(broker: BrokerProcess) -> AsyncIterator[Admin]:
    admin = await Admin.open(ClientConfig.from_properties(properties(broker), kind="admin"))
    try:
        yield admin
    finally:
        await admin.close()


Current = dict[bytes | None, TopicRecord]


@asynccontextmanager
async def opened_log(broker: BrokerProcess, topic: str) -> AsyncIterator[tuple[TopicLog, Current]]:
    """Open the topic's log. Yield the log, and a dictionary with the last record of each key."""
    current: Current = {}
    logs = TopicLogs(properties(broker))
    log = logs.add(topic, lambda record: current.update({record.key: record}))
    await logs.start()
    try:
        yield log, current
    finally:
        await logs.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the metadata has no event for it
            await asyncio.sleep(0.05)


async def test_topic_log_appends_records_of_existing_keys_to_the_same_partition_after_partitions_are_added(
    broker: BrokerProcess,
) -> None:
    async with opened_admin(broker) as admin, opened_log_of_new_topic(broker, admin, "grown") as (log, current):
        await log.append([(key, b"old") for key in KEYS])
        await admin.create_partitions({"grown": 7})
        await until(lambda: log.partition_count == 7)
        await log.append([(key, b"new") for key in KEYS])
        await log.append([(b"later", b"new")])
        await log.read_to_end()
        assert {current[key].partition for key in (*KEYS, b"later")} == {0}
        async with opened_log(broker, "grown") as (restarted, found):
            assert {record.value for record in found.values()} == {b"new"}
            await restarted.append([(key, b"last") for key in KEYS])
            await restarted.append([(b"other-%d" % number, b"x") for number in range(50)])
        await log.read_to_end()
        assert {current[key].value for key in KEYS} == {b"last"}
        assert len({record.partition for record in current.values()}) > 1, "a later worker uses all partitions"


async def test_topic_log_does_not_recreate_a_deleted_topic_and_reports_an_error_if_another_client_recreates_it(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_log, "DELETION_CONFIRMATION_S", 3600)
    async with opened_admin(broker) as admin, opened_log_of_new_topic(broker, admin, "deleted") as (log, _):
        await log.append([(b"k", b"v")])
        await admin.delete_topics(["deleted"])
        await asyncio.sleep(1)  # the log refreshes its metadata several times
        assert "deleted" not in await admin.list_topics()
        assert log.logs.errors == {}
        monkeypatch.setattr(topic_log, "DELETION_CONFIRMATION_S", 1)
        await until(lambda: log.logs.errors)
        for access in (log.append([(b"k", b"v")]), log.read_to_end()):
            with pytest.raises(TopicDeletedError, match="topic deleted was deleted while the worker was running"):
                await access
        assert caplog.text.count("topic deleted was deleted while") == 1
        await admin.create_topics([NewTopic("deleted", 1, 1, {})])
        await until(lambda: not log.is_deleted)
        assert "topic deleted was deleted and created again" in log.logs.errors["deleted"]
        assert caplog.text.count("was deleted and created again") == 1


async def test_topic_log_clients_stop_immediately_although_a_record_of_a_deleted_topic_is_not_acknowledged(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_log, "DELETION_CONFIRMATION_S", 0.5)
    async with opened_admin(broker) as admin, opened_log_of_new_topic(broker, admin, "lost") as (log, _):
        await admin.delete_topics(["lost"])
        sent = log.send(b"k", b"v")
        await until(lambda: log.is_deleted)
        assert not sent.done()
        async with asyncio.timeout(30):
            await log.logs.stop()
        with pytest.raises(ClientError):
            await sent


@asynccontextmanager
async def opened_log_of_new_topic(
    broker: BrokerProcess, admin: Admin, topic: str
) -> AsyncIterator[tuple[TopicLog, Current]]:
    await admin.create_topics([NewTopic(topic, 1, 1, {"cleanup.policy": "compact"})])
    async with opened_log(broker, topic) as opened:
        yield opened
