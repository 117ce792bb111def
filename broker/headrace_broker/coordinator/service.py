"""Defines GroupCoordinator, the asyncio interface to the group shards of this node.

The node has one shard for each partition of `__consumer_offsets` that it leads, and each request goes to its group's
shard. The coordinator responds to a write after the write's records are committed. It responds to OffsetFetch and
DescribeGroups after all records on which the response depends are committed. If a client disconnects, its member stays
in the group until the member's session expires. This module does I/O.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from uuid import uuid4

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.join_requests import ClientIdentity
from headrace_broker.coordinator.groups.offset_fetch_responses import fetch_response, group_error, requested_groups
from headrace_broker.coordinator.groups.offset_requests import commit_response
from headrace_broker.coordinator.groups.records import NAME_LENGTH_MAX, UNSUPPORTED_TYPES, decode_record
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.coordinator.placement import coordinator_partition
from headrace_broker.coordinator.response_errors import with_error
from headrace_broker.coordinator.runner import InternalTopic, ShardRunner
from headrace_broker.coordinator.runtime import CoordinatorRecord, CoordinatorResult
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
from headrace_broker.protocol.versioned import key_type
from headrace_broker.records.batch import CorruptBatchError
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

_log = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")

_LOAD_SIZE_BYTES = 1 << 20
_EXPIRED_GROUPS_AT_ONCE = 50


class GroupCoordinator:
    """Coordinates every group whose `__consumer_offsets` partition this node leads.

    All methods must be called on the event loop. `now_ms` returns wall-clock time.
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
        self._reported_types: set[int] = set()
        self._expiry: asyncio.Task[None] | None = None

    # -- partitions

    async def load(self, partition: int) -> None:
        """Replay the log of a `__consumer_offsets` partition and become the coordinator of its groups.

        During the replay, requests for groups of this partition fail with
        COORDINATOR_LOAD_IN_PROGRESS, except Heartbeat, which succeeds. Requests for groups of other
        partitions are handled as usual.
        """
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
                    return  # this node is no longer the partition's leader
                # The partition stays in `_loading`, and requests for its groups fail with
                # COORDINATOR_LOAD_IN_PROGRESS. Consumers would otherwise find no committed offsets
                # and reset their positions.
                _log.error(
                    "__consumer_offsets-%d: cannot load the records from offset %d on, so the partition's groups stay "
                    "unavailable: %s",
                    partition,
                    offset,
                    error,
                )
                return
            assert columns.next_offset is not None
            runner.load(self._decode_records(columns, partition), columns.next_offset)
            offset = columns.next_offset
            await asyncio.sleep(0)
            if self._loading.get(partition) is not runner:
                return  # this node is no longer the partition's leader
        del self._loading[partition]
        self._runners[partition] = runner
        runner.run(shard.on_loaded(runner.now_ms()))
        # Remove the offsets of topics that no longer exist: the coordinator may have crashed between the deletion of a
        # topic and the removal of its offsets.
        deleted = frozenset(topic for topic in shard.offsets.topics() if not self._topic.topic_exists(topic))
        runner.run(shard.on_topics_deleted(deleted))
        if shard.groups:
            _log.info("__consumer_offsets-%d: loaded %d groups", partition, len(shard.groups))

    def unload(self, partition: int) -> None:
        """Stop coordinating the groups of a `__consumer_offsets` partition.

        Pending requests for these groups fail with NOT_COORDINATOR.
        """
        for runner in (self._loading.pop(partition, None), self._runners.pop(partition, None)):
            if runner is not None:
                runner.close(ErrorCode.NOT_COORDINATOR)

    def start(self) -> None:
        """Start the periodic expiration of committed offsets.

        The partitions of `__consumer_offsets` are processed one at a time, each once per
        offsets.retention.check.interval.ms.
        """
        self._expiry = asyncio.get_running_loop().create_task(self._expire_offsets_periodically())

    def close(self) -> None:
        """Stop the expiration of committed offsets and unload every partition."""
        if self._expiry is not None:
            self._expiry.cancel()
        for partition in [*self._loading, *self._runners]:
            self.unload(partition)

    def on_high_watermark_advanced(self, partition: int, high_watermark: int) -> None:
        """Send the responses whose records in a `__consumer_offsets` partition are now below `high_watermark`."""
        runner = self._runners.get(partition)
        if runner is not None:
            runner.on_high_watermark_advanced(high_watermark)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        """Remove the committed offsets of deleted topics."""
        deleted = frozenset(topics)
        for runner in self._runners.values():
            runner.flush()
            runner.run(runner.shard.on_topics_deleted(deleted))

    async def _expire_offsets_periodically(self) -> None:
        partition = 0
        while True:
            count = max(1, self._topic.partition_count())
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / count / 1000)
            try:
                await self._expire(partition % count)
            except Exception:  # noqa: BLE001  continue with the next partition; this one is retried in the next round
                _log.exception("__consumer_offsets-%d: cannot expire offsets, retrying later", partition % count)
            partition += 1

    async def _expire(self, partition: int) -> None:
        """Remove the expired offsets of the groups in `partition`, a few groups at a time."""
        runner = self._runners.get(partition)
        names = list(runner.shard.groups) if runner is not None else []
        for start in range(0, len(names), _EXPIRED_GROUPS_AT_ONCE):
            if runner is None or self._runners.get(partition) is not runner:
                return
            runner.flush()
            group_ids = names[start : start + _EXPIRED_GROUPS_AT_ONCE]
            runner.run(runner.shard.expire(group_ids, runner.now_ms()))
            await asyncio.sleep(0)

    # -- membership

    async def join_group(self, request: JoinGroupRequest, version: int, client: ClientIdentity) -> JoinGroupResponse:
        """Handle JoinGroup: if the group rebalances, respond when the join phase ends."""

        def join(shard: GroupShard, token: Any, now_ms: int) -> CoordinatorResult:
            return shard.join(request, version, client, token, now_ms)

        response = JoinGroupResponse(member_id=request.member_id, protocol_name="", leader="")
        return await self._write(request.group_id, join, response)

    async def sync_group(self, request: SyncGroupRequest, version: int) -> SyncGroupResponse:
        """Handle SyncGroup: respond when the group leader's assignments are committed."""

        def sync(shard: GroupShard, token: Any, now_ms: int) -> CoordinatorResult:
            return shard.sync(request, version, token, now_ms)

        return await self._write(request.group_id, sync, SyncGroupResponse())

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle Heartbeat: extend the member's session and report whether the group is rebalancing."""
        try:
            runner = self._runner_for(request.group_id)
        except ApiError as error:
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)
        return runner.shard.heartbeat(request, runner.now_ms())

    async def leave_group(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        """Handle LeaveGroup: remove one or more members from the group."""

        def leave(shard: GroupShard, token: Any, now_ms: int) -> CoordinatorResult:
            return shard.leave(request, version, token, now_ms)

        return await self._write(request.group_id, leave, LeaveGroupResponse())

    # -- offsets

    async def commit_offsets(self, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        """Handle OffsetCommit: respond when the records of the new offsets are committed."""
        try:
            runner = self._runner_for(request.group_id)
        except ApiError as error:
            return commit_response(request, error.code)
        future: asyncio.Future[OffsetCommitResponse] = asyncio.get_running_loop().create_future()
        runner.run_offset_commit(runner.shard.commit(request, version, future, runner.now_ms()))
        return await future

    async def fetch_offsets(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        """Handle OffsetFetch: return the committed offsets of the requested groups.

        `require_stable` has no effect, because transactions are not supported yet.
        """
        groups = requested_groups(request, version)
        return fetch_response([await self.fetch_group(group, version) for group in groups], version)

    async def fetch_group(self, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
        """Return one group's committed offsets for `group.topics` (None = all topics)."""
        try:
            runner = self._runner_for(group.group_id)
        except ApiError as error:
            return group_error(group, error.code, version)
        runner.flush()
        # Read the offsets before the wait, because records appended during the wait may be uncommitted
        # when the wait ends.
        response = runner.shard.fetch(group)
        if await runner.wait_for_commit() is not ErrorCode.NONE:
            # Consumers of every version retry NOT_COORDINATOR.
            return group_error(group, ErrorCode.NOT_COORDINATOR, version)
        return response

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Handle OffsetDelete: remove a group's offsets for topics to which no member is subscribed."""

        def delete(shard: GroupShard, token: Any, now_ms: int) -> CoordinatorResult:
            return shard.delete_offsets(request, token)

        return await self._write(request.group_id, delete, OffsetDeleteResponse())

    # -- describing, listing and deleting groups

    async def describe_groups(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=[await self._describe(group, version) for group in request.groups])

    async def _describe(self, group_id: str, version: int) -> DescribedGroup:
        try:
            runner = self._runner_for(group_id)
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code)
        runner.flush()
        response = runner.shard.describe(group_id, version)
        commit_error = await runner.wait_for_commit()
        if commit_error is not ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=commit_error)
        return response

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Handle ListGroups: list the groups of this coordinator, filtered by state and type (case-insensitive)."""
        if self._loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = frozenset(state.strip().lower() for state in request.states_filter)
        types = frozenset(kind.strip().lower() for kind in request.types_filter)
        groups: list[ListedGroup] = []
        for runner in self._runners.values():
            runner.flush()
            groups += runner.shard.list_groups(states, types)
        return ListGroupsResponse(groups=groups)

    def committed_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield the committed offsets of all groups as (group, topic, partition, offset).

        The groups may change between two steps of the iterator.
        """
        for runner in list(self._runners.values()):
            offsets = runner.shard.offsets
            for group_id in offsets.group_ids():
                for topic, partitions in list(offsets.group_offsets(group_id).items()):
                    for partition, committed in list(partitions.items()):
                        yield group_id, topic, partition, committed.offset

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Handle DeleteGroups: delete empty groups and their offsets."""
        results: list[DeletableGroupResult] = []
        for group_id in request.groups_names:

            def delete(shard: GroupShard, token: Any, now_ms: int, group_id: str = group_id) -> CoordinatorResult:
                return shard.delete_groups([group_id], token)

            results += await self._write(group_id, delete, [DeletableGroupResult(group_id=group_id)])
        return DeleteGroupsResponse(results=results)

    # -- routing

    def _runner_for(self, group_id: str) -> ShardRunner:
        """Return the `ShardRunner` of the group's shard.

        Raises:
            ApiError: INVALID_GROUP_ID, if the group id is too long; COORDINATOR_LOAD_IN_PROGRESS, if
                the group's partition is loading; NOT_COORDINATOR, if this node does not lead the
                partition.
        """
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
        self, group_id: str, operation: Callable[[GroupShard, Any, int], CoordinatorResult], error_response: ResponseT
    ) -> ResponseT:
        """Run `operation` on the group's shard and wait for its response.

        If the shard is not available on this node, set the error in `error_response` and return
        `error_response`.
        """
        try:
            runner = self._runner_for(group_id)
        except ApiError as error:
            return with_error(error_response, error.code)
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
        runner.flush()
        runner.run(operation(runner.shard, future, runner.now_ms()))
        return await future

    def _decode_records(self, columns: RecordColumns, partition: int) -> list[CoordinatorRecord]:
        """Decode the records of committed offsets and the records of classic groups. Skip records of other types.

        A record that cannot be decoded is logged and skipped.
        """
        records = []
        keys = columns.keys or []
        offsets = columns.offsets or []
        for key, value, offset in zip(keys, columns.values, offsets, strict=False):
            if key is None:
                continue
            try:
                record = decode_record(key, value)
            except ProtocolError as error:
                _log.warning("__consumer_offsets-%d: skipping the record at offset %d: %s", partition, offset, error)
                continue
            if record is not None:
                records.append(record)
            elif value is not None:
                self._report_unsupported_type(key_type(key), partition, offset)
        return records

    def _report_unsupported_type(self, number: int, partition: int, offset: int) -> None:
        """Log each record type once, because a partition can contain very many records of one type."""
        if number in self._reported_types:
            return
        self._reported_types.add(number)
        _log.warning(
            "__consumer_offsets-%d: skipping the record at offset %d and all further records of type %d (%s): headrace "
            "supports only groups of the classic protocol. The clients of such groups must use group.protocol=classic",
            partition,
            offset,
            number,
            UNSUPPORTED_TYPES.get(number, "unknown"),
        )
