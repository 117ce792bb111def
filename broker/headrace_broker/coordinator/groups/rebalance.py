"""Rebalances classic groups.

The join phase ends when every known member has joined and no member id is pending, or after the
longest rebalance timeout of the members. If the group was empty, the join phase instead lasts
`group.initial.rebalance.delay.ms`, and it is extended up to the rebalance timeout while members keep
joining. Dynamic members that did not join in time are removed. Static members stay until their
session expires.
"""

from __future__ import annotations

import logging

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.group_responses import join_error, join_response, sync_error, sync_response
from headrace_broker.coordinator.groups.records import group_record
from headrace_broker.coordinator.runtime import CoordinatorResult
from headrace_broker.coordinator.timers import TimerKey, Timers
from headrace_broker.protocol.errors import ErrorCode

_log = logging.getLogger(__name__)

_SESSION, _JOIN, _SYNC = "session", "join", "sync"


class Rebalancer:
    """Performs the state transitions of one shard's groups and handles the shard's timers."""

    def __init__(self, config: GroupConfig, groups: dict[str, ClassicGroup], timers: Timers) -> None:
        self._config = config
        self._groups = groups
        self._timers = timers

    # -- sessions

    def refresh_session(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        self._timers.schedule((_SESSION, group.group_id, member.member_id), now_ms + member.session_timeout_ms)

    def schedule_first_join_timeout(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        """Start the timeout of a new member's first JoinGroup request.

        The member sends no heartbeats until the request completes.
        """
        deadline_ms = now_ms + self._config.new_member_join_timeout_ms
        self._timers.schedule((_SESSION, group.group_id, member.member_id), deadline_ms)

    def add_pending_member(self, group: ClassicGroup, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        group.pending_joins.add(member_id)
        self._timers.schedule((_SESSION, group.group_id, member_id), now_ms + session_timeout_ms)

    def cancel_session(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel((_SESSION, group.group_id, member_id))

    def cancel_timers(self, group: ClassicGroup) -> None:
        """Cancel all timers of a deleted group."""
        for member_id in [*group.members, *group.pending_joins]:
            self.cancel_session(group, member_id)
        self._timers.cancel((_JOIN, group.group_id))
        self._timers.cancel((_SYNC, group.group_id))

    def run_timer(self, key: TimerKey, now_ms: int, out: CoordinatorResult) -> None:
        group = self._groups.get(key[1])
        if group is None:
            return
        if key[0] == _SESSION:
            self._expire_session(group, key[2], now_ms, out)
        elif key[0] == _JOIN:
            self._expire_join(group, now_ms, out)
        else:
            self._expire_sync(group, now_ms, out)

    def _expire_session(self, group: ClassicGroup, member_id: str, now_ms: int, out: CoordinatorResult) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending_joins.discard(member_id)
            self.maybe_complete_join(group, now_ms, out, initial=not group.members)
        elif not member.is_alive_without_heartbeat:
            _log.info("Group %s: removing member %s, because its session expired", group.group_id, member_id)
            self.remove(group, member, now_ms, out)
            self.rebalance_after_removal(group, now_ms, out)

    # -- members

    def remove(self, group: ClassicGroup, member: Member, now_ms: int, out: CoordinatorResult) -> None:
        """Remove a member and fail its pending requests. The caller must start or complete the rebalance."""
        self.cancel_session(group, member.member_id)
        self._fail_pending_requests(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "", out)
        group.remove(member.member_id)

    def rebalance_after_removal(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, now_ms, out)
        else:
            self.maybe_complete_join(group, now_ms, out, initial=not group.members)

    def fence_pending_requests(self, group: ClassicGroup, member: Member, out: CoordinatorResult) -> None:
        """Fail the pending requests of a static member's previous process with FENCED_INSTANCE_ID."""
        self._fail_pending_requests(group, member, ErrorCode.FENCED_INSTANCE_ID, member.member_id, out)

    def fail_all_pending_requests(self, group: ClassicGroup, error: ErrorCode, out: CoordinatorResult) -> None:
        for member in group.members.values():
            self._fail_pending_requests(group, member, error, member.member_id, out)

    def _fail_pending_requests(
        self, group: ClassicGroup, member: Member, error: ErrorCode, member_id: str, out: CoordinatorResult
    ) -> None:
        join = group.pop_pending_join(member)
        if join is not None:
            out.respond(join.token, join_error(error, member_id, join.version))
        sync, member.awaiting_sync = member.awaiting_sync, None
        if sync is not None:
            out.respond(sync.token, sync_error(error))

    # -- join phase

    def prepare_rebalance_or_complete_join(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        """Start a rebalance, or complete the current join phase if every member has joined."""
        if group.is_rebalancing:
            self.maybe_complete_join(group, now_ms, out)
        else:
            self.prepare_rebalance(group, now_ms, out)

    def prepare_rebalance(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        """Start the join phase of a rebalance."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignments_with_error(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
        group.pending_syncs.clear()
        self._timers.cancel((_SYNC, group.group_id))
        was_empty = group.is_empty
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        _log.debug("Group %s: preparing to rebalance, old generation %d", group.group_id, group.generation_id)
        if was_empty:
            self._start_initial_rebalance_delay(group, now_ms)
        elif group.all_members_joined:
            self._complete_join(group, now_ms, out)
        else:
            self._timers.schedule((_JOIN, group.group_id), now_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(
        self, group: ClassicGroup, now_ms: int, out: CoordinatorResult, *, initial: bool = False
    ) -> None:
        """Complete the join phase if every member has joined.

        During the initial rebalance delay of a group that was empty, complete the join phase only if
        `initial` is set.
        """
        if not group.is_rebalancing or not group.all_members_joined:
            return
        if initial or group.initial_delay_left_ms is None:
            self._complete_join(group, now_ms, out)

    def _start_initial_rebalance_delay(self, group: ClassicGroup, now_ms: int) -> None:
        delay_ms = self._config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._timers.schedule((_JOIN, group.group_id), now_ms + delay_ms)

    def _expire_join(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        if not group.is_rebalancing:
            return
        left_ms = group.initial_delay_left_ms
        if left_ms and group.new_member_added:
            delay_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
            group.new_member_added = False
            group.initial_delay_left_ms = left_ms - delay_ms
            self._timers.schedule((_JOIN, group.group_id), now_ms + delay_ms)
        else:
            self._complete_join(group, now_ms, out)

    def _complete_join(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        self._timers.cancel((_JOIN, group.group_id))
        for member in [m for m in group.members.values() if m.awaiting_join is None and m.group_instance_id is None]:
            _log.info(
                "Group %s: removing member %s, because it did not rejoin within the rebalance timeout",
                group.group_id,
                member.member_id,
            )
            self.remove(group, member, now_ms, out)
        if group.members and not group.elect_leader():
            # Only static members are left and none has joined: wait until they join or their sessions expire.
            self._timers.schedule((_JOIN, group.group_id), now_ms + group.rebalance_timeout_ms)
            return
        group.next_generation(now_ms)
        _log.info(
            "Group %s: join phase completed, generation %d has %d members",
            group.group_id,
            group.generation_id,
            len(group.members),
        )
        if not group.members:
            out.records.append(group_record(group))
            return
        self._respond_to_joins(group, now_ms, out)

    def _respond_to_joins(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        for member in group.members.values():
            member.is_new = False
            join = group.pop_pending_join(member)
            if join is not None:
                out.respond(join.token, join_response(group, member, join.version))
            self.refresh_session(group, member, now_ms)
        group.pending_syncs = set(group.members)
        self._timers.schedule((_SYNC, group.group_id), now_ms + group.rebalance_timeout_ms)

    # -- assignments

    def on_sync_received(self, group: ClassicGroup, member: Member) -> None:
        """Mark the member's SyncGroup as received; cancel the sync timeout if every member has sent SyncGroup."""
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._timers.cancel((_SYNC, group.group_id))

    def propagate_assignments(
        self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: CoordinatorResult
    ) -> None:
        """Respond to the pending SyncGroup requests and change the group's state to Stable.

        Called when the leader's assignments are in the log.
        """
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            sync, member.awaiting_sync = member.awaiting_sync, None
            if sync is not None:
                out.respond(sync.token, sync_response(group, member))
                self.refresh_session(group, member, now_ms)
        group.transition_to(GroupState.STABLE, now_ms)

    def reset_assignments_with_error(
        self, group: ClassicGroup, error: ErrorCode, now_ms: int, out: CoordinatorResult
    ) -> None:
        """Discard the members' assignments and fail the pending SyncGroup requests with `error`."""
        for member in group.members.values():
            member.assignment = b""
            sync, member.awaiting_sync = member.awaiting_sync, None
            if sync is not None:
                out.respond(sync.token, sync_error(error))
                self.refresh_session(group, member, now_ms)

    def _expire_sync(self, group: ClassicGroup, now_ms: int, out: CoordinatorResult) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
            return
        _log.info(
            "Group %s: removing members %s, because they sent no SyncGroup within the rebalance timeout",
            group.group_id,
            sorted(group.pending_syncs),
        )
        for member_id in list(group.pending_syncs):
            self.remove(group, group.members[member_id], now_ms, out)
        self.prepare_rebalance(group, now_ms, out)
