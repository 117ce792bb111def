"""Tests of GroupCoordinator on an event loop with virtual time.

The tests cover offset commits, pending requests, loading and unloading of partitions, and disconnected
clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.join_requests import ClientIdentity
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
from support.virtual_time import run_in_virtual_time

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=1)
CLIENT = ClientIdentity("client", "/127.0.0.1")


def run_scenario(
    scenario: Callable[[GroupCoordinator, MemoryTopic], Awaitable[None]], config: GroupConfig = CONFIG
) -> None:
    async def run() -> None:
        topic = MemoryTopic()
        coordinator = GroupCoordinator(topic, config, Clock())
        for partition in range(PARTITIONS):
            await coordinator.load(partition)
        await scenario(coordinator, topic)
        coordinator.close()

    run_in_virtual_time(run(), timeout_s=10)


def commit(offset: int, group: str = "g") -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])])


async def fetch(coordinator: GroupCoordinator, group: str = "g") -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    response = await coordinator.fetch_offsets(request, 9)
    (fetched,) = response.groups
    if fetched.error_code:
        raise ApiError(ErrorCode(fetched.error_code))
    return fetched.topics[0].partitions[0].committed_offset if fetched.topics else -1


def join(member_id: str = "", group: str = "g", session_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="x",
        protocols=[JoinGroupRequestProtocol(name="p", metadata=b"meta")],
    )


async def join_new_member(coordinator: GroupCoordinator, **options: Any) -> str:
    response = await coordinator.join_group(join(**options), 3, CLIENT)
    assert response.error_code == 0
    return response.member_id


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  the coordinator's timers change the condition and set no event
        await asyncio.sleep(0.005)


def error_of(response: Any) -> ErrorCode:
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_member_can_join_and_sync_and_send_heartbeats_and_commit_and_fetch_offsets() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await join_new_member(coordinator)
        assignment = SyncGroupRequestAssignment(member_id=member, assignment=b"mine")
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id=member, assignments=[assignment])
        assert (await coordinator.sync_group(request, 5)).assignment == b"mine"
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert coordinator.heartbeat(heartbeat).error_code == 0
        own_commit = commit(5)
        own_commit.member_id, own_commit.generation_id_or_member_epoch = member, 1
        assert error_of(await coordinator.commit_offsets(own_commit, 9)) is ErrorCode.NONE
        assert await fetch(coordinator) == 5
        described = await coordinator.describe_groups(DescribeGroupsRequest(groups=["g", "none"]), 5)
        assert [group.group_state for group in described.groups] == ["Stable", "Dead"]
        deleted = await coordinator.delete_groups(DeleteGroupsRequest(groups_names=["g", "none"]))
        assert [r.error_code for r in deleted.results] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]

    run_scenario(scenario)


async def store_uncommitted_and_fetch(
    coordinator: GroupCoordinator, topic: MemoryTopic, offset: int
) -> tuple[asyncio.Future[OffsetCommitResponse], asyncio.Future[int]]:
    """Start an OffsetCommit of `offset`, whose record is appended but not committed. Then start an OffsetFetch.

    Return the futures of both requests.
    """
    topic.advances_high_watermark = False
    stored_commit = asyncio.ensure_future(coordinator.commit_offsets(commit(offset), 9))
    await asyncio.sleep(0.01)
    return stored_commit, asyncio.ensure_future(fetch(coordinator))


def test_offset_commit_and_fetch_wait_until_the_high_watermark_includes_the_offset_record() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        partition = coordinator_partition("g", PARTITIONS)
        stored_commit, fetched_offset = await store_uncommitted_and_fetch(coordinator, topic, 5)
        await asyncio.sleep(0.01)
        assert not stored_commit.done()
        assert not fetched_offset.done(), "an offset that may be lost must not be returned"
        coordinator.on_high_watermark_advanced(partition, topic.ends[partition] - 1)
        assert not stored_commit.done()
        topic.committed[partition] = topic.ends[partition]
        coordinator.on_high_watermark_advanced(partition, topic.ends[partition])
        assert error_of(await stored_commit) is ErrorCode.NONE
        assert await fetched_offset == 5

    run_scenario(scenario)


def test_pending_offset_fetch_does_not_return_offsets_appended_after_the_request() -> None:
    """A pending OffsetFetch returns the offsets at the time of the request.

    It does not return later offsets, because they may be lost in a failover.
    """

    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        partition = coordinator_partition("g", PARTITIONS)
        first, fetched_offset = await store_uncommitted_and_fetch(coordinator, topic, 1)
        described = asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5))
        await asyncio.sleep(0.01)
        topic.committed[partition] = topic.ends[partition]
        later = asyncio.ensure_future(coordinator.commit_offsets(commit(2), 9))
        joining = asyncio.ensure_future(coordinator.join_group(join(), 3, CLIENT))
        await asyncio.sleep(0.01)
        assert topic.ends[partition] > topic.committed[partition]
        coordinator.on_high_watermark_advanced(partition, topic.committed[partition])
        assert error_of(await first) is ErrorCode.NONE
        assert await fetched_offset == 1
        assert (await described).groups[0].members == []
        for pending in (later, joining):
            pending.cancel()

    run_scenario(scenario)


def test_offset_commit_returns_error_coordinator_not_available_if_it_is_not_replicated_before_the_timeout() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.advances_high_watermark = False
        assert error_of(await coordinator.commit_offsets(commit(5), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run_scenario(scenario, GroupConfig(offset_commit_timeout_ms=20))


def test_offset_commits_of_one_event_loop_iteration_share_a_batch() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        responses = await asyncio.gather(*(coordinator.commit_offsets(commit(n), 9) for n in range(100)))
        assert {error_of(response) for response in responses} == {ErrorCode.NONE}
        assert [len(batches) for batches in topic.batches].count(1) == 1
        assert sum(topic.ends) == 100
        assert await fetch(coordinator) == 99

    run_scenario(scenario)


def test_large_offset_commit_is_split_into_batches() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        partitions = [OffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(1000)]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
        await coordinator.commit_offsets(request, 9)
        batches = topic.batches[coordinator_partition("g", PARTITIONS)]
        assert len(batches) > 10
        assert max(map(len, batches)) <= 4096
        await coordinator.load(coordinator_partition("g", PARTITIONS))
        request2 = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        (group,) = (await coordinator.fetch_offsets(request2, 9)).groups
        assert len(group.topics[0].partitions) == 1000

    run_scenario(scenario, GroupConfig(batch_size_bytes_max=4096))


@pytest.mark.parametrize(
    ("append_error", "expected_error"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_append_error_of_an_offset_commit_is_translated_to_a_coordinator_error(
    append_error: ErrorCode, expected_error: ErrorCode
) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(4), 9)
        topic.error = append_error
        assert error_of(await coordinator.commit_offsets(commit(5), 9)) is expected_error
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert await fetch(coordinator) == 4

    run_scenario(scenario)


def test_committed_offsets_can_be_listed_while_they_change() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        for group in ("g", "h", "i"):
            await coordinator.commit_offsets(commit(7, group), 9)
        listed = coordinator.committed_offsets()
        first = next(listed)
        remaining = {"g", "h", "i"} - {first[0]}
        await coordinator.commit_offsets(commit(8, min(remaining)), 9)
        await coordinator.delete_groups(DeleteGroupsRequest(groups_names=[first[0], max(remaining)]))
        assert [first, *listed] == [(first[0], "t", 0, 7), (min(remaining), "t", 0, 8)]
        coordinator.close()
        assert list(coordinator.committed_offsets()) == []

    run_scenario(scenario)


def test_restarted_coordinator_loads_groups_and_offsets() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await join_new_member(coordinator)
        await coordinator.sync_group(SyncGroupRequest(group_id="g", generation_id=1, member_id=member), 5)
        await coordinator.commit_offsets(commit(7, "simple"), 9)
        restarted = GroupCoordinator(topic, CONFIG, Clock())
        for partition in range(PARTITIONS):
            await restarted.load(partition)
        assert await fetch(restarted, "simple") == 7
        assert restarted.heartbeat(HeartbeatRequest(group_id="g", generation_id=1, member_id=member)).error_code == 0
        listed = restarted.list_groups(ListGroupsRequest(states_filter=["STABLE "], types_filter=["Classic"]))
        assert [group.group_id for group in listed.groups] == ["g"]
        restarted.close()

    run_scenario(scenario)


def test_coordinator_that_loads_an_offsets_partition_skips_a_malformed_record(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(4), 9)
        partition = coordinator_partition("g", PARTITIONS)
        columns = RecordColumns(values=[b"\0\3", b"x", b"y"], keys=[b"\0\1\0", None, b"\0\5whatever"], timestamps=0)
        topic.append(partition, build_batch(columns))
        await coordinator.load(partition)
        assert await fetch(coordinator) == 4
        assert f"__consumer_offsets-{partition}: skipping the record at offset 1" in caplog.text

    run_scenario(scenario)


def test_coordinator_reports_each_type_of_unsupported_group_record_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(4), 9)
        partition = coordinator_partition("g", PARTITIONS)
        types = [3, 3, *range(3, 24)]
        keys: list[bytes | None] = [number.to_bytes(2, "big") + b"whatever" for number in types]
        topic.append(partition, build_batch(RecordColumns(values=[b"\0\0"] * len(keys), keys=keys, timestamps=0)))
        tombstone = RecordColumns(values=[None], keys=[b"\0\x18whatever"], timestamps=0)
        topic.append(partition, build_batch(tombstone))
        for _ in range(2):
            await coordinator.load(partition)
        assert await fetch(coordinator) == 4
        lines = [record.getMessage() for record in caplog.records if "further records of type" in record.getMessage()]
        assert len(lines) == 21
        assert lines[0].startswith(
            f"__consumer_offsets-{partition}: skipping the record at offset 1 and all further records of type 3 "
            "(ConsumerGroupMetadata): headrace supports only groups of the classic protocol"
        )

    run_scenario(scenario)


def test_requests_during_the_load_of_an_offsets_partition_return_error_coordinator_load_in_progress() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        for n in range(20):
            await coordinator.commit_offsets(commit(n), 9)
        partition = coordinator_partition("g", PARTITIONS)
        loading = asyncio.ensure_future(coordinator.load(partition))
        await asyncio.sleep(0)
        expected = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == expected
        assert error_of(await coordinator.commit_offsets(commit(1), 9)) is expected
        assert coordinator.list_groups(ListGroupsRequest()).error_code == expected
        assert coordinator.heartbeat(HeartbeatRequest(group_id="g")).error_code == 0
        with pytest.raises(ApiError, match=r"(?i)load"):
            await fetch(coordinator)
        old = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
        assert error_of(await coordinator.fetch_offsets(old, 1)) is expected
        assert (await coordinator.fetch_offsets(old, 2)).error_code == expected
        await loading
        assert await fetch(coordinator) == 19

    run_scenario(scenario)


def test_unload_of_an_offsets_partition_completes_pending_requests_with_error_not_coordinator() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        first = await join_new_member(coordinator)
        pending_join = asyncio.ensure_future(coordinator.join_group(join(), 3, CLIENT))
        await asyncio.sleep(0)
        unflushed = asyncio.ensure_future(coordinator.commit_offsets(commit(1, "simple"), 9))
        await asyncio.sleep(0)
        for partition in range(PARTITIONS):
            coordinator.unload(partition)
        assert (await pending_join).error_code == ErrorCode.NOT_COORDINATOR
        await unflushed
        expected = ErrorCode.NOT_COORDINATOR
        assert (await coordinator.join_group(join(first), 9, CLIENT)).error_code == expected
        assert coordinator.heartbeat(HeartbeatRequest(group_id="g", member_id=first)).error_code == expected
        assert (await coordinator.delete_offsets(OffsetDeleteRequest(group_id="g"))).error_code == expected
        deleted = await coordinator.delete_groups(DeleteGroupsRequest(groups_names=["g"]))
        assert deleted.results[0].error_code == expected
        assert coordinator.list_groups(ListGroupsRequest()).groups == []

    run_scenario(scenario)


@pytest.mark.parametrize("loses_leadership", [True, False])
def test_pending_offset_fetch_fails_if_the_offset_record_is_never_committed(loses_leadership: bool) -> None:
    """While an OffsetFetch is pending, another broker becomes the leader, or offsets.commit.timeout.ms passes."""

    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.advances_high_watermark = False
        commits = asyncio.ensure_future(coordinator.commit_offsets(commit(1), 9))
        fetched = asyncio.ensure_future(fetch(coordinator))
        described = asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5))
        await asyncio.sleep(0.01)
        if loses_leadership:
            coordinator.unload(coordinator_partition("g", PARTITIONS))
        with pytest.raises(ApiError) as rejected:
            await fetched
        assert rejected.value.code is ErrorCode.NOT_COORDINATOR
        expected_error = ErrorCode.NOT_COORDINATOR if loses_leadership else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await described).groups[0].error_code == expected_error
        await commits

    run_scenario(scenario, GroupConfig(offset_commit_timeout_ms=100))


def test_pending_requests_fail_when_the_coordinator_unloads_the_partition() -> None:
    """Each request returns the error NOT_COORDINATOR.

    The requests arrive when the metadata image already has a new leader. The coordinator unloads the partition later.
    """

    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic_without_partitions = OffsetsTopic(1, MetadataImage, PartitionTable(1, not_called, not_called), not_called)
        topic.append, topic.high_watermark = topic_without_partitions.append, topic_without_partitions.high_watermark  # type: ignore[method-assign]
        requests = [
            asyncio.ensure_future(coordinator.commit_offsets(commit(1), 9)),
            asyncio.ensure_future(coordinator.describe_groups(DescribeGroupsRequest(groups=["g"]), 5)),
            asyncio.ensure_future(fetch(coordinator)),
        ]
        await asyncio.sleep(0.01)
        coordinator.unload(coordinator_partition("g", PARTITIONS))
        committed, described, fetched = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(committed, OffsetCommitResponse)
        assert committed.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert isinstance(described, DescribeGroupsResponse)
        assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        assert isinstance(fetched, ApiError)
        assert fetched.code is ErrorCode.NOT_COORDINATOR

    run_scenario(scenario)


def not_called(*arguments: Any) -> Any:
    raise AssertionError("must not be called")


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_COORDINATOR])
def test_load_of_an_unreadable_offsets_partition_raises_no_error_and_logs_an_error_only_for_corrupt_records(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        def read(partition: int, offset: int, size_bytes_max: int) -> None:
            raise ApiError(code)

        topic.read = read  # type: ignore[method-assign, assignment]
        await coordinator.load(0)
        assert ("cannot load the records from offset 0 on" in caplog.text) == (code is ErrorCode.CORRUPT_MESSAGE)

    run_scenario(scenario)


def test_join_before_the_offsets_topic_exists_returns_error_not_coordinator() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        topic.count = 0
        assert (await coordinator.join_group(join(), 9, CLIENT)).error_code == ErrorCode.NOT_COORDINATOR

    run_scenario(scenario)


def test_client_that_disconnects_during_a_join_stays_a_member_until_its_session_timeout() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        first = await join_new_member(coordinator)
        cancelled = asyncio.ensure_future(coordinator.join_group(join(session_ms=50), 3, CLIENT))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        response = await coordinator.join_group(join(first), 9, CLIENT)
        assert len(response.members) == 2
        heartbeat = HeartbeatRequest(group_id="g", generation_id=response.generation_id, member_id=first)
        # The session of the disconnected client's member expires, and the remaining member must rejoin.
        await until(lambda: coordinator.heartbeat(heartbeat).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        response = await coordinator.join_group(join(first), 9, CLIENT)
        assert [member.member_id for member in response.members] == [first]

    run_scenario(scenario)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_wall_clock_change_does_not_affect_session_timeouts(jump_ms: int) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        member = await join_new_member(coordinator, session_ms=600)
        coordinator._now_ms.offset_ms += jump_ms  # type: ignore[attr-defined]
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert coordinator.heartbeat(heartbeat).error_code == 0
        await asyncio.sleep(0.05)
        assert coordinator.heartbeat(heartbeat).error_code == 0
        await asyncio.sleep(0.55)
        assert coordinator.list_groups(ListGroupsRequest()).groups[0].group_state != "Empty"
        await asyncio.sleep(0.06)
        assert coordinator.list_groups(ListGroupsRequest()).groups[0].group_state == "Empty"

    run_scenario(scenario)


def test_offsets_of_deleted_topics_and_expired_offsets_are_removed() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(1), 9)
        coordinator.on_topics_deleted(["t"])
        assert await fetch(coordinator) == -1
        await coordinator.commit_offsets(commit(2), 9)
        coordinator.start()
        await until(lambda: not coordinator.list_groups(ListGroupsRequest()).groups)
        assert await fetch(coordinator) == -1

    run_scenario(scenario, GroupConfig(offsets_retention_ms=20, offsets_retention_check_interval_ms=30))


def test_coordinator_that_loads_a_partition_after_a_crash_removes_the_offsets_of_deleted_topics() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        await coordinator.commit_offsets(commit(1), 9)
        topic.missing.add("t")
        partition = coordinator_partition("g", PARTITIONS)
        await coordinator.load(partition)
        topic.missing.clear()
        assert await fetch(coordinator) == -1
        await coordinator.load(partition)
        assert await fetch(coordinator) == -1

    run_scenario(scenario)


def test_requests_with_names_too_long_for_a_record_are_rejected() -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        long_name = "x" * 40_000
        assert error_of(await coordinator.commit_offsets(commit(1, long_name), 9)) is ErrorCode.INVALID_GROUP_ID
        assert (await coordinator.join_group(join(group=long_name), 9, CLIENT)).error_code == ErrorCode.INVALID_GROUP_ID
        for field in ("protocol_type", "group_instance_id"):
            request = join()
            setattr(request, field, long_name)
            assert (await coordinator.join_group(request, 9, CLIENT)).error_code == ErrorCode.INVALID_REQUEST
        request = join()
        request.protocols = [JoinGroupRequestProtocol(name=long_name, metadata=b"")]
        assert (await coordinator.join_group(request, 9, CLIENT)).error_code == ErrorCode.INVALID_REQUEST
        assert not any(topic.batches)

    run_scenario(scenario)


def test_offset_commit_that_cannot_be_encoded_does_not_fail_later_commits(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(coordinator: GroupCoordinator, topic: MemoryTopic) -> None:
        invalid = commit(1)
        invalid.topics[0].name = "x" * 40_000
        assert error_of(await coordinator.commit_offsets(invalid, 9)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert error_of(await coordinator.commit_offsets(commit(2), 9)) is ErrorCode.NONE
        assert await fetch(coordinator) == 2

    run_scenario(scenario)
    assert "records cannot be encoded" in caplog.text
