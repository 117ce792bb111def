"""Tests that a large request receives the same response whether it is handled in parts or as a whole."""

from __future__ import annotations

import asyncio
import contextlib
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
from headrace_broker.server.network.large_requests import LargeRequests, RequestSplit, handle_in_parts, split_request

BY_TOPIC = RequestSplit(("topics", "partitions"), ("topics", "partitions"), items_max=3)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def list_offsets_request(counts: dict[str, int]) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=index) for index in range(count)])
        for name, count in counts.items()
    ]
    return ListOffsetsRequest(topics=topics)


def respond(request: ListOffsetsRequest) -> ListOffsetsResponse:
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
def test_response_to_a_request_that_is_handled_in_parts_equals_the_response_to_the_whole_request(
    counts: dict[str, int],
) -> None:
    request = list_offsets_request(counts)
    parts = list(split_request(request, BY_TOPIC))
    assert all(sum(max(1, len(topic.partitions)) for topic in part.topics) <= 3 for part in parts)
    assert asyncio.run(handle_in_parts(request, BY_TOPIC, respond)) == respond(request)
    assert request == list_offsets_request(counts)


def test_large_request_with_three_levels_of_arrays_is_split() -> None:
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=list(range(4))) for name in "ab"]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics) for group in "gh"])
    split = RequestSplit(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), items_max=3)
    found = [
        [(group.group_id, topic.name, topic.partition_indexes) for group in part.groups for topic in group.topics]
        for part in split_request(request, split)
    ]
    assert [entry for part in found for entry in part] == [
        (group, name, indexes) for group in "gh" for name in "ab" for indexes in ([0, 1, 2], [3])
    ]


def test_topics_with_the_same_name_stay_in_one_part_when_a_large_request_is_split() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in "abcdeafaghib"])
    parts = list(
        split_request(request, RequestSplit(("topics",), ("topics",), keep_duplicates_together=True, items_max=2))
    )
    assert [[topic.name for topic in part.topics] for part in parts][:2] == [["a", "a", "b", "b"], ["c", "d"]]


@pytest.mark.anyio
async def test_top_level_error_in_one_part_becomes_the_response_to_the_whole_large_request() -> None:
    handled: list[Any] = []

    def fail(part: OffsetFetchRequest) -> Any:
        from headrace_broker.protocol.messages import OffsetFetchResponse

        handled.append(part)
        return OffsetFetchResponse(error_code=15)

    topics = [CreatableTopic(name=str(number)) for number in range(10)]
    large = LargeRequests()
    split = RequestSplit(("topics",), ("topics",), items_max=2)
    response = await large.handle_split(
        lambda: CreateTopicsRequest(topics=topics), fail, lambda response: response, (split,)
    )
    large.close()
    assert response.error_code == 15
    assert len(handled) == 1


def test_request_with_many_slow_parts_does_not_delay_other_requests() -> None:
    started, small_request_done = asyncio.Event(), asyncio.Event()

    async def respond_slowly(part: ListOffsetsRequest) -> ListOffsetsResponse:
        started.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(small_request_done.wait(), 0.01)
        return respond(part)

    async def race() -> list[str]:
        large_requests, order = LargeRequests(), list[str]()

        async def send(name: str, count: int) -> None:
            await large_requests.handle_split(
                lambda: list_offsets_request({"t": count}), respond_slowly, lambda response: response, (BY_TOPIC,)
            )
            order.append(name)

        async def send_small_request() -> None:
            await send("few", 6)
            small_request_done.set()

        first = asyncio.ensure_future(send("many", 3000))
        await started.wait()
        await asyncio.gather(first, send_small_request())
        large_requests.close()
        return order

    assert asyncio.run(race()) == ["few", "many"]
