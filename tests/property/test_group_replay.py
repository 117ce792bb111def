"""Checks GroupShard's invariants under random sequences of requests, timeouts and failovers.

* A shard that is rebuilt from the log has the same offsets and the same Empty and Stable consumer groups.
* A consumer group has exactly one leader, and the leader is a member of the group.
* Generation ids never decrease.
* The assignments of a generation are sent only to members of that generation.
* Every pending request eventually completes, exactly once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from support.examples import examples
from support.groups import GroupDriver, consumer_subscription

GROUPS = ["g1", "g2"]
RETENTION_MS = 100_000
PROTOCOLS = st.sampled_from(
    [
        {"range": consumer_subscription("t")},
        {"range": consumer_subscription("t", "u"), "sticky": b"s"},
        {"sticky": b"s", "range": consumer_subscription("u")},
        {"range": b"\xff"},
    ]
)


def durable_groups(shard: GroupShard) -> dict[str, Any]:
    """Return the state of the Empty and Stable consumer groups, which must survive a failover."""
    return {
        group_id: {
            "generation": group.generation_id,
            "type": group.protocol_type,
            "protocol": group.protocol_name,
            "leader": group.leader_id,
            "state": group.state,
            "empty_since": group.state_timestamp_ms if group.is_empty else None,
            "topics": group.subscribed_topics,
            "static": group.static_members,
            "members": [
                (
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    m.session_timeout_ms,
                    m.rebalance_timeout_ms,
                    m.protocols.get(group.protocol_name or ""),
                    m.assignment,
                )
                for m in group.members.values()
            ],
        }
        for group_id, group in shard.groups.items()
        if group.state in ("Empty", "Stable")
    }


def offsets(shard: GroupShard) -> dict[str, Any]:
    return {
        group_id: shard.fetch(OffsetFetchRequestGroup(group_id=group_id, topics=None)).topics for group_id in GROUPS
    }


class GroupMachine(RuleBasedStateMachine):
    """Sends requests of simulated clients, some of them invalid, to a group shard."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]))
    def start(self, delay_ms: int, max_size: int) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=delay_ms, max_size=max_size, offsets_retention_ms=RETENTION_MS)
        self.driver = GroupDriver(config)
        self.joins: dict[int, str] = {}  # JoinGroup request -> group id
        self.syncs: dict[int, tuple[str, int, str]] = {}  # SyncGroup request -> (group id, generation id, member id)
        self.generations: dict[str, int] = {}

    def pick_member(self, data: st.DataObject, group_id: str) -> str:
        """Draw a member id, usually the id of a member or of a pending member of the consumer group."""
        self.driver.group_id = group_id
        group = self.driver.shard.groups.get(group_id)
        known = [*group.members, *sorted(group.pending_joins)] if group is not None else []
        return data.draw(st.sampled_from([*known, "", "unknown-member"]))

    @rule(
        data=st.data(),
        group_id=st.sampled_from(GROUPS),
        protocols=PROTOCOLS,
        instance=st.sampled_from([None, None, "i1", "i2"]),
        version=st.sampled_from([2, 5, 9]),
        rebalance_ms=st.sampled_from([6_000, 20_000]),
    )
    def join(
        self,
        data: st.DataObject,
        group_id: str,
        protocols: dict[str, bytes],
        instance: str | None,
        version: int,
        rebalance_ms: int,
    ) -> None:
        member = self.pick_member(data, group_id)
        token = self.driver.join(
            member, instance=instance, protocols=protocols, version=version, rebalance_ms=rebalance_ms
        )
        self.joins[token] = group_id

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS), payload=st.binary(max_size=3), fails=st.booleans())
    def sync(self, data: st.DataObject, group_id: str, payload: bytes, fails: bool) -> None:
        member = self.pick_member(data, group_id)
        group = self.driver.shard.groups.get(group_id)
        generation = group.generation_id if group is not None else 0
        if fails and group is not None and group.leader_id == member:
            self.driver.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        members = [*group.members, "unknown-member"] if group is not None else []
        token = self.driver.sync(member, generation, {m: m.encode() + payload for m in members})
        self.driver.append_error = None
        self.syncs[token] = (group_id, generation, member)

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS))
    def heartbeat(self, data: st.DataObject, group_id: str) -> None:
        member = self.pick_member(data, group_id)
        group = self.driver.shard.groups.get(group_id)
        self.driver.heartbeat(member, group.generation_id if group is not None else 0)

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS))
    def leave(self, data: st.DataObject, group_id: str) -> None:
        self.driver.leave(
            self.pick_member(data, group_id), ("", "i1") if data.draw(st.booleans()) else "unknown-member"
        )

    @rule(
        data=st.data(),
        group_id=st.sampled_from(GROUPS),
        topic=st.sampled_from(["t", "u"]),
        offset=st.integers(0, 2**63 - 1),
        retention_ms=st.sampled_from([-1, -1, 5_000]),
        fails=st.booleans(),
    )
    def commit(
        self, data: st.DataObject, group_id: str, topic: str, offset: int, retention_ms: int, fails: bool
    ) -> None:
        member = self.pick_member(data, group_id)
        group = self.driver.shard.groups.get(group_id)
        generation = group.generation_id if group is not None and member else -1
        before = offsets(self.driver.shard)
        self.driver.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else None
        errors = self.driver.commit({(topic, 0): offset}, member, generation, retention_ms=retention_ms, metadata="m")
        self.driver.append_error = None
        if fails or errors != [ErrorCode.NONE]:
            assert offsets(self.driver.shard) == before
        else:
            assert self.driver.fetch()[(topic, 0)] == offset

    @rule(group_id=st.sampled_from(GROUPS), topic=st.sampled_from(["t", "u"]))
    def delete_offsets(self, group_id: str, topic: str) -> None:
        self.driver.group_id = group_id
        self.driver.delete_offsets((topic, 0))

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_topic(self, topic: str) -> None:
        self.driver.run(self.driver.shard.on_topics_deleted(frozenset({topic})))

    @rule(group_id=st.sampled_from(GROUPS))
    def delete_group(self, group_id: str) -> None:
        if self.driver.delete_group(group_id) is ErrorCode.NONE:
            self.forget(group_id)

    @rule(milliseconds=st.sampled_from([0, 1, 3_000, 9_999, 10_001, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)

    @rule()
    def expire(self) -> None:
        self.driver.run(self.driver.shard.expire(GROUPS, self.driver.now_ms))
        for group_id in GROUPS:
            if group_id not in self.driver.shard.groups:
                self.forget(group_id)

    @rule()
    def fail_over(self) -> None:
        """Move the coordinator to another node.

        Pending requests fail, and generations without a group metadata record are lost.
        """
        self.driver.run(self.driver.shard.unload(ErrorCode.NOT_COORDINATOR))
        assert set(self.joins) <= set(self.driver.responses)
        assert set(self.syncs) <= set(self.driver.responses)
        self.driver.restart()
        self.generations.clear()
        self.joins.clear()
        self.syncs.clear()

    def forget(self, group_id: str) -> None:
        self.generations.pop(group_id, None)
        self.joins = {token: group for token, group in self.joins.items() if group != group_id}

    @invariant()
    def shard_rebuilt_from_the_log_is_equal(self) -> None:
        rebuilt = self.driver.replay_log()
        assert offsets(rebuilt) == offsets(self.driver.shard)
        assert rebuilt.groups.keys() == self.driver.shard.groups.keys()
        live = durable_groups(self.driver.shard)
        copy = durable_groups(rebuilt)
        for group_id, group in live.items():
            assert copy[group_id] == group
        for group_id, group in copy.items():
            assert group["generation"] <= self.driver.shard.groups[group_id].generation_id

    @invariant()
    def groups_are_consistent(self) -> None:
        for group_id, group in self.driver.shard.groups.items():
            assert (group.leader_id in group.members) == bool(group.members)
            assert group.generation_id >= self.generations.get(group_id, 0)
            self.generations[group_id] = group.generation_id
            assert set(group.static_members.values()) <= group.members.keys()
            assert not group.pending_joins & group.members.keys()
            assert group.pending_syncs <= group.members.keys()
            assert group.awaiting_join_count == sum(m.awaiting_join is not None for m in group.members.values())
            if group.state in ("Empty", "Stable", "CompletingRebalance"):
                assert not group.awaiting_join_count
            if group.state != "CompletingRebalance":
                assert all(m.awaiting_sync is None for m in group.members.values())
            assert bool(group.members) or group.state in ("Empty", "PreparingRebalance")

    @invariant()
    def pending_requests_have_a_deadline(self) -> None:
        has_pending_requests = any(
            member.awaiting_join is not None or member.awaiting_sync is not None
            for group in self.driver.shard.groups.values()
            for member in group.members.values()
        )
        is_preparing = any(group.state == "PreparingRebalance" for group in self.driver.shard.groups.values())
        assert not (has_pending_requests or is_preparing) or self.driver.shard.next_deadline_ms() is not None

    @invariant()
    def only_members_of_a_generation_receive_its_leader_and_assignments(self) -> None:
        leaders: dict[tuple[str, int], set[str]] = {}
        for token, group_id in list(self.joins.items()):
            response = self.driver.responses.get(token)
            if response is not None and not response.error_code and response.members and not response.skip_assignment:
                leaders.setdefault((group_id, response.generation_id), set()).add(response.leader)
        assert all(len(ids) == 1 for ids in leaders.values()), leaders
        for token, (_, generation, member) in list(self.syncs.items()):
            response = self.driver.responses.pop(token, None)
            if response is None:
                continue
            del self.syncs[token]
            if not response.error_code and response.assignment:
                assert response.assignment.startswith(member.encode()) or member.startswith("i"), (member, generation)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.advance(400_000)
        incomplete = (set(self.joins) | set(self.syncs)) - set(self.driver.responses)
        assert not incomplete, "every request must complete"


GroupMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestGroupShard = GroupMachine.TestCase
