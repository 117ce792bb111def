"""How a classic group moves from one generation to the next. Pure: time comes in, replies and records go out.

The join barrier closes when every known member has joined and nobody is pending, or when the longest rebalance
time-out has passed; a group that was empty waits `group.initial.rebalance.delay.ms` for company instead, longer as
long as members keep coming. Members that missed the barrier are removed, static ones stay until their session ends.
"""

from __future__ import annotations

import logging

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.records import group_record
from headrace_broker.coordinator.groups.replies import join_answer, join_error, sync_answer, sync_error
from headrace_broker.coordinator.runtime import Outcome
from headrace_broker.coordinator.timers import TimerKey, Timers
from headrace_broker.protocol.errors import ErrorCode

_log = logging.getLogger(__name__)

_SESSION, _JOIN, _SYNC = "session", "join", "sync"


class Rebalancer:
    """Drives the groups of one shard through their states, and owns the meaning of the shard's timers."""

    def __init__(self, config: GroupConfig, groups: dict[str, ClassicGroup], timers: Timers) -> None:
        self._config = config
        self._groups = groups
        self._timers = timers

    # -- sessions

    def refresh_session(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        self._timers.schedule((_SESSION, group.group_id, member.member_id), now_ms + member.session_timeout_ms)

    def await_first_join(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        """A new member waits in its first join without heartbeats, but not for ever."""
        deadline_ms = now_ms + self._config.new_member_join_timeout_ms
        self._timers.schedule((_SESSION, group.group_id, member.member_id), deadline_ms)

    def await_pending_join(self, group: ClassicGroup, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        group.pending_joins.add(member_id)
        self._timers.schedule((_SESSION, group.group_id, member_id), now_ms + session_timeout_ms)

    def forget_session(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel((_SESSION, group.group_id, member_id))

    def forget_group(self, group: ClassicGroup) -> None:
        """Drop all timers of a group that is going away."""
        for member_id in [*group.members, *group.pending_joins]:
            self.forget_session(group, member_id)
        self._timers.cancel((_JOIN, group.group_id))
        self._timers.cancel((_SYNC, group.group_id))

    def run_timer(self, key: TimerKey, now_ms: int, out: Outcome) -> None:
        group = self._groups.get(key[1])
        if group is None:
            return
        if key[0] == _SESSION:
            self._expire_session(group, key[2], now_ms, out)
        elif key[0] == _JOIN:
            self._expire_join(group, now_ms, out)
        else:
            self._expire_sync(group, now_ms, out)

    def _expire_session(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending_joins.discard(member_id)
            self.maybe_complete_join(group, now_ms, out, initial=not group.members)
        elif not member.counts_as_alive:
            _log.info("Group %s: member %s is removed, its session expired", group.group_id, member_id)
            self.remove(group, member, now_ms, out)
            self.after_removal(group, now_ms, out)

    # -- members

    def remove(self, group: ClassicGroup, member: Member, now_ms: int, out: Outcome) -> None:
        """Take a member out and tell its parked requests; `after_removal` draws the consequences."""
        self.forget_session(group, member.member_id)
        self._refuse_parked(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "", out)
        group.remove(member.member_id)

    def after_removal(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, now_ms, out)
        else:
            self.maybe_complete_join(group, now_ms, out, initial=not group.members)

    def fence(self, group: ClassicGroup, member: Member, out: Outcome) -> None:
        """Refuse what the former holder of a static member's instance id has parked."""
        self._refuse_parked(group, member, ErrorCode.FENCED_INSTANCE_ID, member.member_id, out)

    def refuse_all(self, group: ClassicGroup, error: ErrorCode, out: Outcome) -> None:
        for member in group.members.values():
            self._refuse_parked(group, member, error, member.member_id, out)

    def _refuse_parked(
        self, group: ClassicGroup, member: Member, error: ErrorCode, member_id: str, out: Outcome
    ) -> None:
        join = group.take_join(member)
        if join is not None:
            out.reply(join.token, join_error(error, member_id, join.version))
        sync, member.awaiting_sync = member.awaiting_sync, None
        if sync is not None:
            out.reply(sync.token, sync_error(error))

    # -- the join barrier

    def rebalance_or_complete(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Start a rebalance, or close the barrier of the one that runs when everybody is there."""
        if group.is_rebalancing:
            self.maybe_complete_join(group, now_ms, out)
        else:
            self.prepare_rebalance(group, now_ms, out)

    def prepare_rebalance(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Open the join barrier."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.withdraw_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
        group.pending_syncs.clear()
        self._timers.cancel((_SYNC, group.group_id))
        was_empty = group.is_empty
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        _log.debug("Group %s rebalances from generation %d", group.group_id, group.generation_id)
        if was_empty:
            self._open_initial_barrier(group, now_ms)
        elif group.all_members_joined:
            self._complete_join(group, now_ms, out)
        else:
            self._timers.schedule((_JOIN, group.group_id), now_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome, *, initial: bool = False) -> None:
        """Close the barrier if nobody is missing; an initial one (of a group that was empty) only if asked to."""
        if not group.is_rebalancing or not group.all_members_joined:
            return
        if initial or group.initial_delay_left_ms is None:
            self._complete_join(group, now_ms, out)

    def _open_initial_barrier(self, group: ClassicGroup, now_ms: int) -> None:
        delay_ms = self._config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._timers.schedule((_JOIN, group.group_id), now_ms + delay_ms)

    def _expire_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
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

    def _complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        self._timers.cancel((_JOIN, group.group_id))
        for member in [m for m in group.members.values() if m.awaiting_join is None and m.group_instance_id is None]:
            _log.info("Group %s: member %s did not rejoin in time", group.group_id, member.member_id)
            self.remove(group, member, now_ms, out)
        if group.members and not group.elect_leader():
            # only static members are left and none has joined: their sessions decide
            self._timers.schedule((_JOIN, group.group_id), now_ms + group.rebalance_timeout_ms)
            return
        group.next_generation(now_ms)
        _log.info("Group %s: generation %d with %d members", group.group_id, group.generation_id, len(group.members))
        if not group.members:
            out.records.append(group_record(group))
            return
        self._announce_generation(group, now_ms, out)

    def _announce_generation(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        for member in group.members.values():
            member.is_new = False
            join = group.take_join(member)
            if join is not None:
                out.reply(join.token, join_answer(group, member, join.version))
            self.refresh_session(group, member, now_ms)
        group.pending_syncs = set(group.members)
        self._timers.schedule((_SYNC, group.group_id), now_ms + group.rebalance_timeout_ms)

    # -- assignments

    def synced(self, group: ClassicGroup, member: Member) -> None:
        """The member has asked for its assignment."""
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._timers.cancel((_SYNC, group.group_id))

    def hand_out_assignments(
        self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome
    ) -> None:
        """The leader's assignments are in the log: the group is Stable."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            sync, member.awaiting_sync = member.awaiting_sync, None
            if sync is not None:
                out.reply(sync.token, sync_answer(group, member))
                self.refresh_session(group, member, now_ms)
        group.transition_to(GroupState.STABLE, now_ms)

    def withdraw_assignments(self, group: ClassicGroup, error: ErrorCode, now_ms: int, out: Outcome) -> None:
        """Refuse the syncs that wait in this generation."""
        for member in group.members.values():
            member.assignment = b""
            sync, member.awaiting_sync = member.awaiting_sync, None
            if sync is not None:
                out.reply(sync.token, sync_error(error))
                self.refresh_session(group, member, now_ms)

    def _expire_sync(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
            return
        _log.info("Group %s: no SyncGroup from %s in time", group.group_id, sorted(group.pending_syncs))
        for member_id in list(group.pending_syncs):
            self.remove(group, group.members[member_id], now_ms, out)
        self.prepare_rebalance(group, now_ms, out)
