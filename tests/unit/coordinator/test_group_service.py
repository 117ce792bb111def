"""GroupCoordinator on an event loop: commits, waiting, loading, losing partitions, clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.joining import ClientIdentity
from headrace_broker.coordinator.placement import coordinator_partition
from headrace_broker.coordinator.service import GroupCoordinator
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from headrace_broker.protocol.messages.join_group import JoinGroupRequestProtocol
from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopic
from headrace_broker.protocol.messages.sync_group import SyncGroupRequestAssignment
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.server.offsets_topic import OffsetsTopic
from headrace_broker.server.replicas.partitions import PartitionTable
from support.groups import PARTITIONS, Clock, MemoryTopic

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=1)
CLIENT = ClientIdentity("client", "/127.0.0.1")


def coordinated(
    scene: Callable[[GroupCoordinator, MemoryTopic], Awaitable[None]], config: GroupConfig = CONFIG
) -> None:
    async def play() -> None:
        topic = MemoryTopic()
        coordinator = GroupCoordinator(topic, config, Clock())
        for partition in range(PARTITIONS):
            await coordinator.load(partition)
        await asyncio.wait_for(scene(coordinator, topic), 10)
        coordinator.close()

    asyncio.run(play())


def commit(offset: int, group: str = "g") -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[part])])


async def fetch(coordinator: GroupCoordinator, group: str = "g") -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    response = await coordinator.fetch_offsets(request, 9)
    (answer,) = response.groups
    if answer.error_code:
        raise ApiError(ErrorCode(answer.error_code))
    return answer.topics[0].partitions[0].committed_offset if answer.topics else -1


def join(member_id: str = "", group: str = "g", session_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="x",
        protocols=[JoinGroupRequestProtocol(name="p", metadata=b"meta")],
    )


async def joined(coordinator: GroupCoordinator, **options: Any) -> str:
    response = await coordinator.join_group(join(**options), 3, CLIENT)
    assert response.error_code == 0
    return response.member_id


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  it comes about by a timer inside, which sets no event
        await asyncio.sleep(0.005)


def error_of(response: Any) -> ErrorCode:
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_join_sync_heartbeat_commit_and_fetch() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await joined(coordinator)
        assignment = SyncGroupRequestAssignment(member_id=member, assignment=b"mine")
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=[assignment])
        assert (await coordinator.sync_group(request, 5)).assignment == b"mine"
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert coordinator.heartbeat(beat).error_code == 0
        mine = commit(5)
        mine.member_id, mine.generation_id_or_member_epoch = member, 1
        assert error_of(await coordinator.commit_offsets(mine, 9)) is ErrorCode.NONE
        assert await fetch(coordinator) == 5
        described = await coordinator.describe_groups(DescribeGroupsRequest(groups=["g", "none"]), 5)
        assert [group.group_state for group in described.groups] == ["Stable", "Dead"]
        deleted = await coordinator.delete_groups(DeleteGroupsRequest(groups_names=["g", "none"]))
        assert [r.error_code for r in deleted.results] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]

    coordinated(scene)


async def looked_at_too_early(
    coordinator: GroupCoordinator, topic: MemoryTopic, offset: int
) -> tuple[asyncio.Future[OffsetCommitResponse], asyncio.Future[int]]:
    """An offset that is stored and not committed, and somebody who looks at it."""
    topic.commits = False
    stored = asyncio.ensure_future(coordinator.commit_offsets(commit(offset), 9))
    await asyncio.sleep(0.01)
    return stored, asyncio.ensure_future(fetch(coordinator))


def test_nothing_is_answered_before_it_is_committed() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        partition = coordinator_partition("g", PARTITIONS)
        stored, seen = await looked_at_too_early(coordinator, topic, 5)
        await asyncio.sleep(0.01)
        assert not stored.done()
        assert not seen.done(), "an offset that may be lost must not be shown"
        coordinator.advance(partition, topic.ends[partition] - 1)
        assert not stored.done()
        topic.committed[partition] = topic.ends[partition]
        coordinator.advance(partition, topic.ends[partition])
        assert error_of(await stored) is ErrorCode.NONE
        assert await seen == 5

    coordinated(scene)


def test_what_is_stored_while_somebody_waits_to_look_is_not_shown() -> None:
    """It may yet be lost: who waits sees what there was when it asked."""

    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        partition = coordinator_partition("g", PARTITIONS)
        first, seen = await looked_at_too_early(coordinator, topic, 1)
        described = asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5))
        await asyncio.sleep(0.01)
        topic.committed[partition] = topic.ends[partition]
        later = asyncio.ensure_future(coordinator.commit_offsets(commit(2), 9))
        joining = asyncio.ensure_future(coordinator.join_group(join(), 3, CLIENT))
        await asyncio.sleep(0.01)
        assert topic.ends[partition] > topic.committed[partition]
        coordinator.advance(partition, topic.committed[partition])
        assert error_of(await first) is ErrorCode.NONE
        assert await seen == 1
        assert (await described).groups[0].members == []
        for waiting in (later, joining):
            waiting.cancel()

    coordinated(scene)


def test_what_is_not_committed_in_time_is_refused() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.commits = False
        assert error_of(await coordinator.commit_offsets(commit(5), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    coordinated(scene, GroupConfig(offset_commit_timeout_ms=20))


def test_commits_of_one_tick_share_a_batch() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        responses = await asyncio.gather(*(coordinator.commit_offsets(commit(n), 9) for n in range(100)))
        assert {error_of(response) for response in responses} == {ErrorCode.NONE}
        assert [len(batches) for batches in topic.batches].count(1) == 1
        assert sum(topic.ends) == 100
        assert await fetch(coordinator) == 99

    coordinated(scene)


def test_a_large_commit_is_cut_into_batches() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        parts = [OffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(1000)]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=parts)])
        await coordinator.commit_offsets(request, 9)
        batches = topic.batches[coordinator_partition("g", PARTITIONS)]
        assert len(batches) > 10
        assert max(map(len, batches)) <= 4096
        await coordinator.load(coordinator_partition("g", PARTITIONS))
        request2 = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await coordinator.fetch_offsets(request2, 9)).groups
        assert len(group.topics[0].partitions) == 1000

    coordinated(scene, GroupConfig(batch_size_bytes_max=4096))


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_append_is_told_as_a_coordinators_error(refusal: ErrorCode, told: ErrorCode) -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(4), 9)
        topic.error = refusal
        assert error_of(await coordinator.commit_offsets(commit(5), 9)) is told
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert await fetch(coordinator) == 4

    coordinated(scene)


def test_a_restarted_coordinator_knows_everything() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await joined(coordinator)
        await coordinator.sync_group(SyncGroupRequest(group_id="g", generation_id=1, member_id=member), 5)
        await coordinator.commit_offsets(commit(7, "simple"), 9)
        again = GroupCoordinator(topic, CONFIG, Clock())
        for partition in range(PARTITIONS):
            await again.load(partition)
        assert await fetch(again, "simple") == 7
        assert again.heartbeat(HeartbeatRequest(group_id="g", generation_id=1, member_id=member)).error_code == 0
        listed = again.list_groups(ListGroupsRequest(states_filter=["STABLE "], types_filter=["Classic"]))
        assert [group.group_id for group in listed.groups] == ["g"]
        again.close()

    coordinated(scene)


def test_a_record_that_cannot_be_read_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(4), 9)
        partition = coordinator_partition("g", PARTITIONS)
        columns = RecordColumns(values=[b"\0\3", b"x", b"y"], keys=[b"\0\1\0", None, b"\0\5whatever"], timestamps=0)
        topic.append(partition, build_batch(columns))
        await coordinator.load(partition)
        assert await fetch(coordinator) == 4
        assert f"Record 1 of __consumer_offsets-{partition} is skipped" in caplog.text

    coordinated(scene)


def test_while_a_partition_loads_its_groups_are_told_to_wait() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        for n in range(20):
            await coordinator.commit_offsets(commit(n), 9)
        partition = coordinator_partition("g", PARTITIONS)
        loading = asyncio.ensure_future(coordinator.load(partition))
        await asyncio.sleep(0)
        loads = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == loads
        assert error_of(await coordinator.commit_offsets(commit(1), 9)) is loads
        assert coordinator.list_groups(ListGroupsRequest()).error_code == loads
        assert coordinator.heartbeat(HeartbeatRequest(group_id="g")).error_code == 0
        with pytest.raises(ApiError, match=r"(?i)load"):
            await fetch(coordinator)
        old = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
        assert error_of(await coordinator.fetch_offsets(old, 1)) is loads
        assert (await coordinator.fetch_offsets(old, 2)).error_code == loads
        await loading
        assert await fetch(coordinator) == 19

    coordinated(scene)


def test_a_lost_partition_answers_whoever_waits() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        first = await joined(coordinator)
        waiting = asyncio.ensure_future(coordinator.join_group(join(), 3, CLIENT))
        await asyncio.sleep(0)
        unflushed = asyncio.ensure_future(coordinator.commit_offsets(commit(1, "simple"), 9))
        await asyncio.sleep(0)
        for partition in range(PARTITIONS):
            coordinator.unload(partition)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        await unflushed
        lost = ErrorCode.NOT_COORDINATOR
        assert (await coordinator.join_group(join(first), 9, CLIENT)).error_code == lost
        assert coordinator.heartbeat(HeartbeatRequest(group_id="g", member_id=first)).error_code == lost
        assert (await coordinator.delete_offsets(OffsetDeleteRequest(group_id="g"))).error_code == lost
        deleted = await coordinator.delete_groups(DeleteGroupsRequest(groups_names=["g"]))
        assert deleted.results[0].error_code == lost
        assert coordinator.list_groups(ListGroupsRequest()).groups == []

    coordinated(scene)


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_was_never_committed_is_not_shown_when_its_fate_is_open(is_lost: bool) -> None:
    """The partition is lost, or its replicas are silent for too long, while somebody waits to see it."""

    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.commits = False
        commits = asyncio.ensure_future(coordinator.commit_offsets(commit(1), 9))
        fetched = asyncio.ensure_future(fetch(coordinator))
        described = asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5))
        await asyncio.sleep(0.01)
        if is_lost:
            coordinator.unload(coordinator_partition("g", PARTITIONS))
        with pytest.raises(ApiError) as refused:
            await fetched
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        told = ErrorCode.NOT_COORDINATOR if is_lost else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await described).groups[0].error_code == told
        await commits

    coordinated(scene, GroupConfig(offset_commit_timeout_ms=100))


def test_who_asks_in_the_moment_in_which_a_partition_is_lost_is_answered() -> None:
    """The image names another leader already, and the coordinator is told a little later."""

    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        of_no_partition = OffsetsTopic(1, MetadataImage, PartitionTable(1, nothing, nothing), nothing)
        topic.append, topic.high_watermark = of_no_partition.append, of_no_partition.high_watermark  # type: ignore[method-assign]
        asked = [
            asyncio.ensure_future(coordinator.commit_offsets(commit(1), 9)),
            asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5)),
            asyncio.ensure_future(fetch(coordinator)),
        ]
        await asyncio.sleep(0.01)
        coordinator.unload(coordinator_partition("g", PARTITIONS))
        committed, described, fetched = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(committed, OffsetCommitResponse)
        assert committed.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert isinstance(described, DescribeGroupsResponse)
        assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        assert isinstance(fetched, ApiError)
        assert fetched.code is ErrorCode.NOT_COORDINATOR

    coordinated(scene)


def nothing(*arguments: Any) -> Any:
    raise AssertionError("nobody asks for that")


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_COORDINATOR])
def test_a_partition_that_cannot_be_read_keeps_no_other_from_being_loaded(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        def read(partition: int, offset: int, size_bytes_max: int) -> None:
            raise ApiError(code)

        topic.read = read  # type: ignore[method-assign, assignment]
        await coordinator.load(0)
        assert ("cannot be loaded at offset 0" in caplog.text) == (code is ErrorCode.CORRUPT_MESSAGE)

    coordinated(scene)


def test_before_the_topic_exists_nobody_is_the_coordinator() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.count = 0
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == ErrorCode.NOT_COORDINATOR

    coordinated(scene)


def test_a_client_that_goes_away_while_it_waits_stays_a_member_for_its_session() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        first = await joined(coordinator)
        gone = asyncio.ensure_future(coordinator.join_group(join(session_ms=50), 3, CLIENT))
        await asyncio.sleep(0.01)
        gone.cancel()
        response = await coordinator.join_group(join(first), 9, CLIENT)
        assert len(response.members) == 2
        beat = HeartbeatRequest(group_id="g", generation_id=response.generation_id, member_id=first)
        # its session ends, and the survivor is told to rebalance
        await until(lambda: coordinator.heartbeat(beat).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        response = await coordinator.join_group(join(first), 9, CLIENT)
        assert [member.member_id for member in response.members] == [first]

    coordinated(scene)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_expires_nobody_early_or_late(jump_ms: int) -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await joined(coordinator, session_ms=600)
        coordinator._now_ms.set_ahead_ms += jump_ms  # type: ignore[attr-defined]
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert coordinator.heartbeat(beat).error_code == 0
        await asyncio.sleep(0.05)
        assert coordinator.heartbeat(beat).error_code == 0
        await until(lambda: coordinator.list_groups(ListGroupsRequest()).groups[0].group_state == "Empty")

    coordinated(scene)


def test_offsets_of_deleted_topics_and_of_the_past_are_removed() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(1), 9)
        coordinator.topics_deleted(["t"])
        assert await fetch(coordinator) == -1
        await coordinator.commit_offsets(commit(2), 9)
        coordinator.start()
        await until(lambda: not coordinator.list_groups(ListGroupsRequest()).groups)
        assert await fetch(coordinator) == -1

    coordinated(scene, GroupConfig(offsets_retention_ms=20, offsets_retention_check_interval_ms=30))


def test_offsets_of_a_topic_that_went_away_in_a_crash_are_removed_when_loading() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(1), 9)
        topic.missing.add("t")
        partition = coordinator_partition("g", PARTITIONS)
        await coordinator.load(partition)
        topic.missing.clear()
        assert await fetch(coordinator) == -1
        await coordinator.load(partition)
        assert await fetch(coordinator) == -1

    coordinated(scene)


def test_names_too_long_to_be_stored_are_refused_at_the_door() -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        long = "x" * 40_000
        assert error_of(await coordinator.commit_offsets(commit(1, long), 9)) is ErrorCode.INVALID_GROUP_ID
        assert (await coordinator.join_group(join(group=long), 9, CLIENT)).error_code == ErrorCode.INVALID_GROUP_ID
        for field in ("protocol_type", "group_instance_id"):
            request = join()
            setattr(request, field, long)
            assert (await coordinator.join_group(request, 9, CLIENT)).error_code == ErrorCode.INVALID_REQUEST
        request = join()
        request.protocols = [JoinGroupRequestProtocol(name=long, metadata=b"")]
        assert (await coordinator.join_group(request, 9, CLIENT)).error_code == ErrorCode.INVALID_REQUEST
        assert not any(topic.batches)

    coordinated(scene)


def test_what_cannot_be_written_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        odd = commit(1)
        odd.topics[0].name = "x" * 40_000
        assert error_of(await coordinator.commit_offsets(odd, 9)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert error_of(await coordinator.commit_offsets(commit(2), 9)) is ErrorCode.NONE
        assert await fetch(coordinator) == 2

    coordinated(scene)
    assert "cannot be written" in caplog.text
