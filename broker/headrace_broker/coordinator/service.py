"""GroupCoordinator: the group APIs' asyncio face over the shards of `__consumer_offsets` that this node leads.

A request goes to the shard of its group; whatever changes something is answered only after its records are committed,
and what is read is answered only when everything it shows is. A client that goes away while it waits loses its answer
and nothing else: members live by their sessions, not by connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import uuid4

from headrace_broker.coordinator.error_replies import with_error
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.fetch_replies import asked_groups, fetch_response, group_error
from headrace_broker.coordinator.groups.joining import ClientIdentity
from headrace_broker.coordinator.groups.offset_requests import commit_response
from headrace_broker.coordinator.groups.records import NAME_LENGTH_MAX, decode_record
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.coordinator.placement import coordinator_partition
from headrace_broker.coordinator.runner import InternalTopic, ShardRunner
from headrace_broker.coordinator.runtime import CoordinatorRecord, Outcome
from headrace_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from headrace_broker.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_groups import DescribedGroup
from headrace_broker.protocol.messages.list_groups import ListedGroup
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from headrace_broker.records.batch import CorruptBatchError
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

_log = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")

_LOAD_SIZE_BYTES = 1 << 20
_EXPIRED_GROUPS_AT_ONCE = 50


class GroupCoordinator:
    """The coordinator of every group whose partition this node leads. Owned by the event loop.

    `now_ms` is wall-clock time.
    """

    def __init__(
        self,
        topic: InternalTopic,
        config: GroupConfig,
        now_ms: Callable[[], int],
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._topic = topic
        self._config = config
        self._now_ms = now_ms
        self._new_id = new_id
        self._runners: dict[int, ShardRunner] = {}
        self._loading: dict[int, ShardRunner] = {}
        self._expiry: asyncio.Task[None] | None = None

    # -- partitions

    async def load(self, partition: int) -> None:
        """Become the coordinator of a partition's groups: replay its log. Other requests run in between."""
        self.unload(partition)
        shard = GroupShard(self._config, self._new_id)
        runner = ShardRunner(shard, self._topic, partition, self._config, self._now_ms)
        self._loading[partition] = runner
        offset = 0
        while True:
            try:
                buffer = self._topic.read(partition, offset, _LOAD_SIZE_BYTES)
                if buffer is None:
                    break
                columns = read_columns(buffer, offset)
            except (ApiError, CorruptBatchError) as error:
                if isinstance(error, ApiError) and error.code is ErrorCode.NOT_COORDINATOR:
                    return  # it was just lost
                _log.error(
                    "Partition %d of __consumer_offsets cannot be loaded at offset %d: %s", partition, offset, error
                )
                return  # stays COORDINATOR_LOAD_IN_PROGRESS rather than forget what groups have committed
            assert columns.next_offset is not None
            runner.load(_decoded(columns, partition), columns.next_offset)
            offset = columns.next_offset
            await asyncio.sleep(0)
            if self._loading.get(partition) is not runner:
                return  # lost the partition meanwhile
        del self._loading[partition]
        self._runners[partition] = runner
        runner.run(shard.loaded(runner.now_ms()))
        # a crash may have come between the deletion of a topic and the removal of its offsets
        gone = frozenset(topic for topic in shard.offsets.topics() if not self._topic.topic_exists(topic))
        runner.run(shard.topics_deleted(gone))
        if shard.groups:
            _log.info("Loaded %d groups of partition %d of __consumer_offsets", len(shard.groups), partition)

    def unload(self, partition: int) -> None:
        """No longer be the coordinator of a partition's groups; everything that waits is told to look elsewhere."""
        for runner in (self._loading.pop(partition, None), self._runners.pop(partition, None)):
            if runner is not None:
                runner.close(ErrorCode.NOT_COORDINATOR)

    def start(self) -> None:
        """Begin to expire offsets, one partition after the other within offsets.retention.check.interval.ms."""
        self._expiry = asyncio.get_running_loop().create_task(self._expire_for_ever())

    def close(self) -> None:
        """Answer everything that waits, and stop."""
        if self._expiry is not None:
            self._expiry.cancel()
        for partition in [*self._loading, *self._runners]:
            self.unload(partition)

    def advance(self, partition: int, high_watermark: int) -> None:
        """The high watermark of a partition of `__consumer_offsets` moved."""
        runner = self._runners.get(partition)
        if runner is not None:
            runner.advance(high_watermark)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Remove the offsets of topics that are gone."""
        gone = frozenset(topics)
        for runner in self._runners.values():
            runner.flush()
            runner.run(runner.shard.topics_deleted(gone))

    async def _expire_for_ever(self) -> None:
        partition = 0
        while True:
            count = max(1, self._topic.partition_count())
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / count / 1000)
            try:
                await self._expire(partition % count)
            except Exception:  # noqa: BLE001  the next partition may fare better, and this one in the next round
                _log.exception("Offsets of partition %d of __consumer_offsets could not be expired", partition % count)
            partition += 1

    async def _expire(self, partition: int) -> None:
        """Expire what is due in one partition, some groups at a time."""
        runner = self._runners.get(partition)
        names = list(runner.shard.groups) if runner is not None else []
        for start in range(0, len(names), _EXPIRED_GROUPS_AT_ONCE):
            if runner is None or self._runners.get(partition) is not runner:
                return
            runner.flush()
            some = names[start : start + _EXPIRED_GROUPS_AT_ONCE]
            runner.run(runner.shard.expire(some, runner.now_ms()))
            await asyncio.sleep(0)

    # -- membership

    async def join_group(self, request: JoinGroupRequest, version: int, client: ClientIdentity) -> JoinGroupResponse:
        """Join; waits until the barrier of the group's next generation closes."""

        def join(shard: GroupShard, token: Any, now_ms: int) -> Outcome:
            return shard.join(request, version, client, token, now_ms)

        response = JoinGroupResponse(member_id=request.member_id, protocol_name="", leader="")
        return await self._write(request.group_id, join, response)

    async def sync_group(self, request: SyncGroupRequest, version: int) -> SyncGroupResponse:
        """Give or get the assignments of a generation; waits until the leader's are stored."""

        def sync(shard: GroupShard, token: Any, now_ms: int) -> Outcome:
            return shard.sync(request, version, token, now_ms)

        return await self._write(request.group_id, sync, SyncGroupResponse())

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Keep a member's session alive, and tell it of a rebalance. Answered at once."""
        try:
            runner = self._runner(request.group_id)
        except ApiError as error:
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)
        return runner.shard.heartbeat(request, runner.now_ms())

    async def leave_group(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        """Remove one member, or several on an operator's behalf."""

        def leave(shard: GroupShard, token: Any, now_ms: int) -> Outcome:
            return shard.leave(request, version, token, now_ms)

        return await self._write(request.group_id, leave, LeaveGroupResponse())

    # -- offsets

    async def commit_offsets(self, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        """Store offsets; answered when they are committed."""
        try:
            runner = self._runner(request.group_id)
        except ApiError as error:
            return commit_response(request, error.code)
        future: asyncio.Future[OffsetCommitResponse] = asyncio.get_running_loop().create_future()
        runner.run_with_next_commits(runner.shard.commit(request, version, future, runner.now_ms()))
        return await future

    async def fetch_offsets(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        """What groups have committed. (No offset is ever pending: there are no transactions yet.)"""
        groups = asked_groups(request, version)
        return fetch_response([await self.fetch_group(group, version) for group in groups], version)

    async def fetch_group(self, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
        """One group's part of it; `topics` None asks for everything it has."""
        try:
            runner = self._runner(group.group_id)
        except ApiError as error:
            return group_error(group, error.code, version)
        runner.flush()
        answer = runner.shard.fetch(group)  # now: what is stored from here on is not waited for
        if await runner.settled() is not ErrorCode.NONE:
            return group_error(group, ErrorCode.NOT_COORDINATOR, version)  # whatever it is: consumers know that one
        return answer

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Remove a group's offsets for partitions that none of its members consumes."""

        def delete(shard: GroupShard, token: Any, now_ms: int) -> Outcome:
            return shard.delete_offsets(request, token)

        return await self._write(request.group_id, delete, OffsetDeleteResponse())

    # -- looking at groups and deleting them

    async def describe_groups(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=[await self._describe(group, version) for group in request.groups])

    async def _describe(self, group_id: str, version: int) -> DescribedGroup:
        try:
            runner = self._runner(group_id)
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code)
        runner.flush()
        answer = runner.shard.describe(group_id, version)
        unsettled = await runner.settled()
        return answer if unsettled is ErrorCode.NONE else DescribedGroup(group_id=group_id, error_code=unsettled)

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """The groups this node coordinates, by state and type in any case."""
        if self._loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = frozenset(state.strip().lower() for state in request.states_filter)
        types = frozenset(kind.strip().lower() for kind in request.types_filter)
        groups: list[ListedGroup] = []
        for runner in self._runners.values():
            runner.flush()
            groups += runner.shard.list_groups(states, types)
        return ListGroupsResponse(groups=groups)

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Delete empty groups with their offsets."""
        results: list[DeletableGroupResult] = []
        for group_id in request.groups_names:

            def delete(shard: GroupShard, token: Any, now_ms: int, group_id: str = group_id) -> Outcome:
                return shard.delete_groups([group_id], token)

            results += await self._write(group_id, delete, [DeletableGroupResult(group_id=group_id)])
        return DeleteGroupsResponse(results=results)

    # -- the way to a shard

    def _runner(self, group_id: str) -> ShardRunner:
        """The runner of the group's shard. Raises ApiError while it is loading, when it is not here, for no name."""
        if len(group_id) > NAME_LENGTH_MAX:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        count = self._topic.partition_count()
        partition = coordinator_partition(group_id, count) if count else -1
        runner = self._runners.get(partition)
        if runner is not None:
            return runner
        is_loading = partition in self._loading
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NOT_COORDINATOR)

    async def _write(
        self, group_id: str, ask: Callable[[GroupShard, Any, int], Outcome], refusal: ResponseT
    ) -> ResponseT:
        """Ask the group's shard, and wait for its reply; `refusal` is the response to fill in when it is not here."""
        try:
            runner = self._runner(group_id)
        except ApiError as error:
            return with_error(refusal, error.code)
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
        runner.flush()
        runner.run(ask(runner.shard, future, runner.now_ms()))
        return await future


def _decoded(columns: RecordColumns, partition: int) -> list[CoordinatorRecord]:
    """The records of the classic protocol; one that cannot be read is named in the log and left out."""
    records = []
    keys = columns.keys or []
    offsets = columns.offsets or []
    for key, value, offset in zip(keys, columns.values, offsets, strict=False):
        try:
            record = decode_record(key, value) if key is not None else None
        except ProtocolError as error:
            _log.warning("Record %d of __consumer_offsets-%d is skipped: %s", offset, partition, error)
            continue
        if record is not None:
            records.append(record)
    return records
