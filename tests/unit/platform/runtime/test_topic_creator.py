"""Tests of the log lines about topics that a source task creates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pytest

from headrace.runtime.topic_creation import TopicCreation
from headrace.runtime.topic_creator import TopicCreator
from headrace_broker.client.admin import NewTopic
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.errors import ErrorCode

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeAdmin:
    """An admin client of a cluster without topics. It accepts all new topics."""

    async def describe_topics(self, names: Sequence[str]) -> dict[str, BrokerError]:
        return {name: BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name) for name in names}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, None]:
        return dict.fromkeys(topic.name for topic in topics)


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "expected"),
    [
        ("2", "3", "2 partitions and replication factor 3"),
        ("2", "-1", "2 partitions and the brokers' default replication factor"),
        ("-1", "3", "the brokers' default number of partitions and replication factor 3"),
    ],
)
async def test_log_line_about_a_created_topic_says_if_a_default_of_the_brokers_is_used(
    partitions: str, replication_factor: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {
        "topic.creation.default.partitions": partitions,
        "topic.creation.default.replication.factor": replication_factor,
    }
    creation = TopicCreation.from_config(keys, enabled=True)
    assert creation is not None
    creator = TopicCreator(creation, ClientConfig.from_properties({"bootstrap.servers": "h:1"}, kind="admin"))
    creator._admin = FakeAdmin()  # type: ignore[assignment]
    with caplog.at_level(logging.INFO):
        await creator.ensure("orders")
    assert caplog.messages == [f"Topic orders: created with {expected}"]
