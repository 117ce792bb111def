"""Defines GroupShard, which holds the groups and committed offsets of one `__consumer_offsets` partition.

Offsets are written to the log with every commit. Membership is written when a generation receives
its assignments, when a group becomes empty, and when a static member is replaced. A shard rebuilt
from the log therefore has the same offsets and the same Empty and Stable groups. A group that was
rebalancing is restored in its last stored generation; its members receive an error for their next
request and join again. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.join_requests import ClientIdentity, JoinRequests
from headrace_broker.coordinator.groups.member_requests import MemberRequests
from headrace_broker.coordinator.groups.offset_requests import OffsetRequests
from headrace_broker.coordinator.groups.offsets import OffsetStore
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import group_from_record, group_tombstone
from headrace_broker.coordinator.runtime import CoordinatorRecord, CoordinatorResult, Token
from headrace_broker.coordinator.timers import Timers
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace_broker.protocol.messages.list_groups import ListedGroup
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup

_GROUP_NOT_FOUND_ERROR_VERSION = 6  # earlier DescribeGroups versions return the state Dead without an error
_GROUP_TYPE = "classic"


class GroupShard:
    """Contains the request handlers of one shard, and implements `runtime.Shard`.

    `new_id` generates unique member ids.
    """

    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore()
        self._config = config
        self._timers = Timers()
        self._rebalancer = Rebalancer(config, self.groups, self._timers)
        self._joining = JoinRequests(config, self.groups, self._rebalancer, new_id)
        self._membership = MemberRequests(self.groups, self._rebalancer)
        self._offset_requests = OffsetRequests(config, self.groups, self.offsets, self._rebalancer)

    # -- membership

    def join(
        self, request: JoinGroupRequest, version: int, client: ClientIdentity, token: Token, now_ms: int
    ) -> CoordinatorResult:
        return self._joining.join(request, version, client, token, now_ms)

    def sync(self, request: SyncGroupRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        return self._membership.sync(request, version, token, now_ms)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> HeartbeatResponse:
        return self._membership.heartbeat(request, now_ms)

    def leave(self, request: LeaveGroupRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        return self._membership.leave(request, version, token, now_ms)

    # -- offsets

    def commit(self, request: OffsetCommitRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        return self._offset_requests.commit(request, version, token, now_ms)

    def delete_offsets(self, request: OffsetDeleteRequest, token: Token) -> CoordinatorResult:
        return self._offset_requests.delete(request, token)

    def fetch(self, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        return self._offset_requests.fetch(group)

    def on_topics_deleted(self, topics: frozenset[str]) -> CoordinatorResult:
        """Remove the offsets that any group has committed for the deleted topics."""
        return CoordinatorResult(records=list(self.offsets.topic_tombstones(topics)))

    def expire(self, group_ids: Iterable[str], now_ms: int) -> CoordinatorResult:
        """Remove the expired offsets of these groups, and each group that then has no members and no offsets."""
        out = CoordinatorResult()
        for group in filter(None, map(self.groups.get, group_ids)):
            expired = list(self.offsets.expired_offset_tombstones(group, self._config.offsets_retention_ms, now_ms))
            out.records.extend(expired)
            count = sum(map(len, self.offsets.group_offsets(group.group_id).values()))
            if group.is_empty and not group.pending_joins and len(expired) == count:
                out.records.append(group_tombstone(group.group_id))
        return out

    # -- describing, listing and deleting groups

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        group = self.groups.get(group_id)
        if group is not None:
            return _described(group)
        if version < _GROUP_NOT_FOUND_ERROR_VERSION:
            return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD, members=[])
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.DEAD,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found.",
            members=[],
        )

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Return the groups whose state is in `states` (in lower case) and whose type is in `types`.

        An empty set matches every state or type.
        """
        if types and _GROUP_TYPE not in types:
            return []
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=_GROUP_TYPE,
            )
            for group in self.groups.values()
            if not states or group.state.lower() in states
        ]

    def delete_groups(self, group_ids: list[str], token: Token) -> CoordinatorResult:
        """Delete empty groups and their offsets. The response is a list with one result per group."""
        out = CoordinatorResult()
        results = [self._delete_group(group_id, out) for group_id in group_ids]
        out.respond(token, results)
        return out

    def _delete_group(self, group_id: str, out: CoordinatorResult) -> DeletableGroupResult:
        group = self.groups.get(group_id)
        if group is None:
            return _not_deleted(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            return _not_deleted(group_id, ErrorCode.NON_EMPTY_GROUP)
        out.records.extend(self.offsets.group_tombstones(group_id))
        out.records.append(group_tombstone(group_id))
        return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE)

    # -- runtime.Shard

    def replay(self, record: CoordinatorRecord) -> None:
        if isinstance(record.key, GroupMetadataKey):
            if isinstance(record.value, GroupMetadataValue):
                self.groups[record.key.group] = group_from_record(record.key.group, record.value)
            else:
                self.groups.pop(record.key.group, None)
        else:
            self._replay_offset(record)

    def _replay_offset(self, record: CoordinatorRecord) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert record.value is None or isinstance(record.value, OffsetCommitValue)
        self.offsets.replay(record.key, record.value)
        if record.value is not None and record.key.group not in self.groups:
            self.groups[record.key.group] = ClassicGroup(record.key.group, record.value.commit_timestamp)

    def on_loaded(self, now_ms: int) -> CoordinatorResult:
        """Restart the session timeout of every member. Rebalance groups that have more members than group.max.size."""
        out = CoordinatorResult()
        for group in self.groups.values():
            for member in group.members.values():
                self._rebalancer.refresh_session(group, member, now_ms)
            if len(group.members) > self._config.max_size:
                self._rebalancer.prepare_rebalance(group, now_ms, out)
        return out

    def on_appended(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult:
        """Apply the appended offset records and group tombstones, then call `result.on_appended`."""
        for record in result.records:
            if not isinstance(record.key, GroupMetadataKey):
                self._replay_offset(record)
            elif record.value is None:
                group = self.groups.pop(record.key.group, None)
                if group is not None:
                    self._rebalancer.cancel_timers(group)
        after = CoordinatorResult()
        if result.on_appended is not None:
            result.on_appended(after, now_ms)
        return after

    def on_append_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult:
        after = CoordinatorResult()
        if result.on_append_failed is not None:
            result.on_append_failed(after, error, now_ms)
        return after

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def run_timers(self, now_ms: int) -> Iterator[CoordinatorResult]:
        for key in self._timers.pop_due(now_ms):
            out = CoordinatorResult()
            self._rebalancer.run_timer(key, now_ms, out)
            yield out

    def on_clock_jump(self, jump_ms: int) -> None:
        self._timers.shift(jump_ms)

    def unload(self, error: ErrorCode) -> CoordinatorResult:
        out = CoordinatorResult()
        for group in self.groups.values():
            self._rebalancer.fail_all_pending_requests(group, error, out)
        self.groups.clear()
        return out


def _not_deleted(group_id: str, error: ErrorCode) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=error, error_message=error.message)


def _described(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    protocol_name = group.protocol_name or "" if is_stable else ""
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[_described_member(member, protocol_name) for member in group.members.values()],
    )


def _described_member(member: Member, protocol_name: str) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.protocols.get(protocol_name, b""),
        member_assignment=member.assignment,
    )
