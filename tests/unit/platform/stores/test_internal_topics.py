"""Tests of the creation of a worker group's internal topics."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.stores.internal_topics import InternalTopic, InternalTopicError, ensure
from headrace_broker.client.admin import NewTopic
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.errors import ErrorCode

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class OneBrokerAdmin:
    """An admin client of a cluster with one broker and no topics."""

    async def describe_topics(self, names: Sequence[str]) -> dict[str, BrokerError]:
        return {name: BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name) for name in names}

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, BrokerError]:
        text = "Only 1 broker(s) are registered."
        return {topic.name: BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, topic.name, text) for topic in topics}


async def test_error_for_a_replication_factor_above_the_number_of_brokers_names_the_key_in_a_second_sentence() -> None:
    topic = InternalTopic("config.storage", "connector configurations", "configs", 1, 4)
    expected = r"Only 1 broker\(s\) are registered\. config\.storage\.replication\.factor is 4; set it to at most "
    with pytest.raises(InternalTopicError, match=expected):
        await ensure(OneBrokerAdmin(), [topic])  # type: ignore[arg-type]
