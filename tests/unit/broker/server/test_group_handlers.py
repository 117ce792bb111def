"""Tests of the group handlers: requests with partitions that do not exist, and with topic ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.service import GroupCoordinator
from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    DescribeGroupsRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from headrace_broker.protocol.messages.join_group import JoinGroupRequestProtocol
from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from headrace_broker.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace_broker.protocol.notation import ZERO_UUID
from headrace_broker.server.authorized_operations import GROUP_OPERATIONS
from headrace_broker.server.handlers import (
    describe_groups,
    join_group,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from support.groups import PARTITIONS, Clock, MemoryTopic

TOPIC_ID = bytes(range(16))
STRANGE_ID = b"?" * 16
IMAGE = MetadataImage(
    topics={"t": TopicImage("t", TOPIC_ID, tuple(PartitionImage((1,), (1,), 1) for _ in range(2)))},
    topic_names={TOPIC_ID: "t"},
)


def run_with_context(test: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        groups = GroupCoordinator(MemoryTopic(), GroupConfig(initial_rebalance_delay_ms=0), Clock())
        for partition in range(PARTITIONS):
            await groups.load(partition)
        await test(SimpleNamespace(groups=groups, image=IMAGE, client_id="c", client_host="127.0.0.1"))
        groups.close()

    asyncio.run(run())


async def commit(context: Any, version: int, *topics: tuple[str, bytes, list[int]]) -> Any:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                topic_id=topic_id,
                partitions=[OffsetCommitRequestPartition(partition_index=i, committed_offset=i) for i in indexes],
            )
            for name, topic_id, indexes in topics
        ],
    )
    response = await offset_commit.handle(context, request, version)
    return decode(OffsetCommitResponse, version, encode_joined(response, version))


def errors(response: Any) -> dict[tuple[str | bytes, int], int]:
    return {
        (topic.name or topic.topic_id, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", range(2, 10))
def test_offset_commit_fails_only_for_the_partitions_that_do_not_exist(version: int) -> None:
    async def test(context: Any) -> None:
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = await commit(context, version, ("t", ZERO_UUID, [0, 1, 2, -1]), ("u", ZERO_UUID, [0]))
        assert errors(response) == {("t", 0): 0, ("t", 1): 0, ("t", 2): missing, ("t", -1): missing, ("u", 0): missing}
        assert len(response.topics) == 2
        assert errors(await commit(context, version, ("u", ZERO_UUID, [0]))) == {("u", 0): missing}

    run_with_context(test)


def test_offset_commit_and_fetch_accept_topic_ids() -> None:
    async def test(context: Any) -> None:
        response = await commit(context, 10, ("", TOPIC_ID, [1, 2]), ("", STRANGE_ID, [0]))
        assert errors(response) == {
            (TOPIC_ID, 1): 0,
            (TOPIC_ID, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (STRANGE_ID, 0): ErrorCode.UNKNOWN_TOPIC_ID,
        }
        requested_topics = [
            OffsetFetchRequestTopics(topic_id=TOPIC_ID, partition_indexes=[0, 1]),
            OffsetFetchRequestTopics(topic_id=STRANGE_ID, partition_indexes=[0]),
        ]
        for topics, expected in (
            (
                requested_topics,
                {(TOPIC_ID, 0): (-1, 0), (TOPIC_ID, 1): (1, 0), (STRANGE_ID, 0): (-1, ErrorCode.UNKNOWN_TOPIC_ID)},
            ),
            (None, {(TOPIC_ID, 1): (1, 0)}),
        ):
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
            fetched = await offset_fetch.handle(context, request, 10)
            fetched = decode(OffsetFetchResponse, 10, encode_joined(fetched, 10))
            assert {
                (topic.topic_id, part.partition_index): (part.committed_offset, part.error_code)
                for topic in fetched.groups[0].topics
                for part in topic.partitions
            } == expected

    run_with_context(test)


def test_offset_fetch_during_topic_recreation_returns_the_id_of_the_old_topic() -> None:
    """The fetched offset belongs to the old topic, so the response must contain the old topic's id.

    With the new topic's id, the consumer would use this offset in the new topic, which starts at 0, and skip records.
    """

    async def test(context: Any) -> None:
        await commit(context, 10, ("", TOPIC_ID, [1]))
        original_fetch_group = context.groups.fetch_group

        async def fetch_group(*arguments: Any) -> Any:
            response = await original_fetch_group(*arguments)
            context.image = MetadataImage(topics={"t": TopicImage("t", STRANGE_ID)}, topic_names={STRANGE_ID: "t"})
            return response

        context.groups.fetch_group = fetch_group
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await offset_fetch.handle(context, request, 10)).groups
        assert [topic.topic_id for topic in group.topics] == [TOPIC_ID]

    run_with_context(test)


@pytest.mark.parametrize("version", range(1, 8))
@pytest.mark.parametrize("everything", [False, True])
def test_offset_fetch_of_a_single_group_succeeds_in_each_version(version: int, everything: bool) -> None:
    async def test(context: Any) -> None:
        await commit(context, 8, ("t", ZERO_UUID, [1]))
        topics = None if everything else [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        if everything and version == 1:
            return
        request = OffsetFetchRequest(group_id="g", topics=topics)
        response = await offset_fetch.handle(context, request, version)
        response = decode(OffsetFetchResponse, version, encode_joined(response, version))
        found = {part.partition_index: part.committed_offset for part in response.topics[0].partitions}
        assert found == ({1: 1} if everything else {0: -1, 1: 1})

    run_with_context(test)


def test_offset_delete_fails_only_for_the_partitions_that_do_not_exist() -> None:
    async def test(context: Any) -> None:
        await commit(context, 8, ("t", ZERO_UUID, [0, 1]))
        request = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for name, indexes in (("t", [1, 5]), ("u", [0]))
            ],
        )
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors(await offset_delete.handle(context, request, 0)) == {
            ("t", 1): 0,
            ("t", 5): missing,
            ("u", 0): missing,
        }

    run_with_context(test)


def test_describe_groups_returns_authorized_operations_if_requested() -> None:
    async def test(context: Any) -> None:
        await commit(context, 8, ("t", ZERO_UUID, [0]))
        for include, operations in ((True, GROUP_OPERATIONS), (False, -(2**31))):
            request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=include)
            response = await describe_groups.handle(context, request, 6)
            assert response.groups[0].authorized_operations == operations

    run_with_context(test)


def test_describe_groups_returns_client_id_and_host_of_members() -> None:
    async def test(context: Any) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            protocol_type="x",
            protocols=[JoinGroupRequestProtocol(name="p", metadata=b"")],
        )
        assert (await join_group.handle(context, request, 0)).error_code == 0
        response = await describe_groups.handle(context, DescribeGroupsRequest(groups=["g"]), 0)
        (member,) = response.groups[0].members
        assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")

    run_with_context(test)
