"""Dividing a request and joining the answers gives what the whole request would have given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.protocol.messages import OffsetFetchRequest
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from headrace_broker.server.network.large_requests import LargeRequests, Parts, answered_in_parts, divided

BY_TOPIC = Parts(("topics", "partitions"), ("topics", "partitions"), count_max=3)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ask(counts: dict[str, int]) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=index) for index in range(count)])
        for name, count in counts.items()
    ]
    return ListOffsetsRequest(topics=topics)


def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=each.partition_index) for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 10), max_size=6))
def test_the_joined_answer_is_that_of_the_whole(counts: dict[str, int]) -> None:
    request = ask(counts)
    parts = list(divided(request, BY_TOPIC))
    assert all(sum(max(1, len(topic.partitions)) for topic in part.topics) <= 3 for part in parts)
    assert asyncio.run(answered_in_parts(request, BY_TOPIC, answer)) == answer(request)
    assert request == ask(counts)


def test_three_levels_are_divided_too() -> None:
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=list(range(4))) for name in "ab"]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics) for group in "gh"])
    parts = Parts(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), count_max=3)
    found = [
        [(group.group_id, topic.name, topic.partition_indexes) for group in part.groups for topic in group.topics]
        for part in divided(request, parts)
    ]
    assert [entry for part in found for entry in part] == [
        (group, name, indexes) for group in "gh" for name in "ab" for indexes in ([0, 1, 2], [3])
    ]


def test_equal_names_come_to_one_handler_so_that_it_can_refuse_them() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in "abcdeafaghib"])
    parts = list(divided(request, Parts(("topics",), ("topics",), together=True, count_max=2)))
    assert [[topic.name for topic in part.topics] for part in parts][:2] == [["a", "a", "b", "b"], ["c", "d"]]


@pytest.mark.anyio
async def test_an_error_of_the_whole_ends_the_work() -> None:
    asked: list[Any] = []

    def refuse(part: OffsetFetchRequest) -> Any:
        from headrace_broker.protocol.messages import OffsetFetchResponse

        asked.append(part)
        return OffsetFetchResponse(error_code=15)

    topics = [CreatableTopic(name=str(number)) for number in range(10)]
    large = LargeRequests()
    parts = Parts(("topics",), ("topics",), count_max=2)
    response = await large.answer(lambda: CreateTopicsRequest(topics=topics), refuse, lambda whole: whole, (parts,))
    large.close()
    assert response.error_code == 15
    assert len(asked) == 1


def test_a_request_of_many_slow_parts_holds_up_no_other() -> None:
    async def slowly(part: ListOffsetsRequest) -> ListOffsetsResponse:
        await asyncio.sleep(0)
        return answer(part)

    async def race() -> list[str]:
        large_requests, order = LargeRequests(), list[str]()

        async def ask_for(name: str, count: int) -> None:
            await large_requests.answer(lambda: ask({"t": count}), slowly, lambda response: response, (BY_TOPIC,))
            order.append(name)

        first = asyncio.ensure_future(ask_for("many", 3000))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, ask_for("few", 6))
        large_requests.close()
        return order

    assert asyncio.run(race()) == ["few", "many"]
