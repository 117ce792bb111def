"""Tests of the classic group protocol."""

from __future__ import annotations

import os

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.protocol.errors import ErrorCode
from support.groups import GroupDriver, consumer_subscription

SUBSCRIBED = {"range": consumer_subscription("t")}
CHANGED = {"range": consumer_subscription("t", "u")}


def error(driver: GroupDriver, token: int) -> ErrorCode:
    return ErrorCode(driver.responses[token].error_code)


# -- joining


def test_join_without_member_id_returns_a_new_member_id_with_error_member_id_required() -> None:
    driver = GroupDriver()
    rejected = driver.responses[driver.join()]
    assert rejected.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert rejected.member_id == "client-id1"
    token = driver.join(rejected.member_id)
    driver.run_due_timers()
    joined = driver.responses[token]
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, rejected.member_id)
    assert [member.member_id for member in joined.members] == [rejected.member_id]


def test_join_group_request_of_a_version_before_4_requires_no_member_id() -> None:
    driver = GroupDriver()
    token = driver.join(version=3)
    driver.run_due_timers()
    assert driver.responses[token].generation_id == 1


def test_pending_member_id_expires_after_the_session_timeout() -> None:
    driver = GroupDriver()
    member = driver.responses[driver.join(session_ms=10_000)].member_id
    driver.advance(10_001)
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_only_the_leader_receives_the_member_list_in_its_join_response() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    joins = [driver.join_new_member(protocols={"range": bytes([n])}) for n in range(3)]
    driver.advance(3_000)
    driver.advance(3_000)
    responses = [driver.responses[token] for _, token in joins]
    leader = responses[0].leader
    assert {r.generation_id for r in responses} == {1}
    assert {r.leader for r in responses} == {leader}
    for (member, _), response in zip(joins, responses, strict=True):
        received = {m.member_id: m.metadata for m in response.members}
        assert received == ({m: bytes([n]) for n, (m, _) in enumerate(joins)} if member == leader else {})


def test_initial_rebalance_delay_is_extended_when_another_member_joins() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    _, first = driver.join_new_member(rebalance_ms=10_000)
    driver.advance(2_000)
    _, second = driver.join_new_member(rebalance_ms=10_000)
    driver.advance(1_000)
    assert first not in driver.responses, "a member joined during the delay, so the delay is extended once"
    driver.advance(3_000)
    assert first in driver.responses
    assert second in driver.responses


def test_initial_rebalance_delay_is_never_extended_beyond_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    _, first = driver.join_new_member(rebalance_ms=7_000)
    for _ in range(3):
        driver.advance(2_300)
        driver.join_new_member(rebalance_ms=7_000)
    assert first not in driver.responses
    driver.advance(100)
    assert first in driver.responses


def test_join_with_metadata_above_the_size_limit_is_rejected() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, batch_size_bytes_max=1000))
    assert error(driver, driver.join(protocols={"range": bytes(8001)})) is ErrorCode.INVALID_REQUEST
    assert driver.shard.groups == {}


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_join_with_session_timeout_out_of_bounds_is_rejected(session_ms: int) -> None:
    driver = GroupDriver()
    assert error(driver, driver.join(session_ms=session_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not driver.shard.groups


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", SUBSCRIBED), ("consumer", {}), ("connect", SUBSCRIBED), ("consumer", {"x": b""})],
)
def test_join_with_inconsistent_protocol_type_or_protocols_is_rejected(
    protocol_type: str, protocols: dict[str, bytes]
) -> None:
    driver = GroupDriver()
    driver.create_stable_group()
    token = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert error(driver, token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_invalid_join_does_not_create_a_group() -> None:
    driver = GroupDriver()
    assert error(driver, driver.join(protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    driver.group_id = ""
    assert error(driver, driver.join()) is ErrorCode.INVALID_GROUP_ID
    assert not driver.shard.groups
    assert not driver.log


def test_members_elect_a_protocol_that_all_members_support() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    offered = [{"a": b"a0", "b": b"b0", "x": b""}, {"b": b"b1", "a": b"a1"}, {"b": b"b2", "a": b"a2", "y": b""}]
    joins = [driver.join_new_member(protocols=offer) for offer in offered]
    driver.advance(10)
    responses = [driver.responses[token] for _, token in joins]
    assert {response.protocol_name for response in responses} == {"b"}
    assert [m.metadata for m in responses[0].members] == [b"b0", b"b1", b"b2"]


def test_requests_of_an_unknown_member_return_error_unknown_member_id() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    assert error(driver, driver.join("unknown-member")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(driver, driver.sync("unknown-member", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("unknown-member", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.group_id = "other-group"
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(driver, driver.sync(member, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_error_has_an_empty_protocol_name_before_version_7_and_a_null_name_from_version_7() -> None:
    driver = GroupDriver()
    assert driver.responses[driver.join("unknown-member", version=6)].protocol_name == ""
    assert driver.responses[driver.join("unknown-member", version=7)].protocol_name is None


# -- rebalancing


def test_second_member_joins_a_stable_group_and_both_members_receive_assignments() -> None:
    """Both members receive their assignments within the first member's session timeout."""
    driver = GroupDriver()
    (first,) = driver.create_stable_group()
    second, second_join = driver.join_new_member()
    assert second_join not in driver.responses
    driver.advance(3_000)
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = driver.responses[driver.join(first)]
    assert rejoined.generation_id == driver.responses[second_join].generation_id == 2
    pending_sync = driver.sync(second, 2)
    assert pending_sync not in driver.responses
    mine = driver.responses[driver.sync(first, 2, {first: b"0", second: b"1"})]
    assert (mine.assignment, driver.responses[pending_sync].assignment) == (b"0", b"1")
    assert driver.heartbeat(first, 2) is driver.heartbeat(second, 2) is ErrorCode.NONE


def test_rejoin_of_a_follower_with_unchanged_metadata_starts_no_rebalance() -> None:
    driver = GroupDriver()
    _, follower = driver.create_stable_group(2)
    response = driver.responses[driver.join(follower)]
    assert (response.generation_id, response.members) == (1, [])
    assert driver.group.state == "Stable"


@pytest.mark.parametrize(("member_index", "protocols"), [(0, SUBSCRIBED), (1, CHANGED)])
def test_rejoin_of_the_leader_or_of_a_member_with_changed_metadata_starts_a_rebalance(
    member_index: int, protocols: dict[str, bytes]
) -> None:
    driver = GroupDriver()
    members = driver.create_stable_group(2)
    token = driver.join(members[member_index], protocols=protocols)
    assert token not in driver.responses
    driver.join(members[1 - member_index])
    assert driver.responses[token].generation_id == 2


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_removed() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2, session_ms=30_000, rebalance_ms=20_000)
    token = driver.join(first, session_ms=30_000, rebalance_ms=20_000)
    driver.advance(19_999)
    assert token not in driver.responses
    driver.heartbeat(second, 1)
    driver.advance(1)
    assert [m.member_id for m in driver.responses[token].members] == [first]
    assert driver.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_is_elected_leader_when_the_leader_does_not_rejoin() -> None:
    driver = GroupDriver()
    _, second = driver.create_stable_group(2, session_ms=30_000, rebalance_ms=20_000)
    token = driver.join(second, protocols=CHANGED, session_ms=30_000, rebalance_ms=20_000)
    driver.advance(20_000)
    assert driver.responses[token].leader == second


def test_join_of_a_new_member_to_a_group_in_state_completing_rebalance_starts_another_rebalance() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2)
    joins = [driver.join(second, protocols=CHANGED), driver.join(first)]
    generation = driver.responses[joins[0]].generation_id
    pending_sync = driver.sync(second, generation)
    third, third_join = driver.join_new_member()
    assert error(driver, pending_sync) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error(driver, driver.sync(first, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(first)
    driver.join(second)
    assert driver.responses[third_join].generation_id == generation + 1
    assert third in driver.group.members


def test_repeated_join_fails_the_pending_join_of_the_member_with_error_rebalance_in_progress() -> None:
    """Responses on a connection are sent in order, so an abandoned JoinGroup must not block later requests."""
    driver = GroupDriver()
    first, _ = driver.create_stable_group(2)
    superseded = driver.join(first)
    repeated = driver.join(first)
    assert error(driver, superseded) is ErrorCode.REBALANCE_IN_PROGRESS
    assert repeated not in driver.responses


def test_join_of_a_new_member_to_a_full_group_returns_error_group_max_size_reached() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    members = driver.create_stable_group(2)
    token = driver.join()
    assert error(driver, token) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.responses[token].member_id == ""
    assert list(driver.group.members) == members


def test_group_above_its_maximum_size_rebalances_and_shrinks_after_it_is_loaded() -> None:
    driver = GroupDriver()
    members = driver.create_stable_group(3)
    driver.config = GroupConfig(initial_rebalance_delay_ms=0, max_size=2)
    driver.restart()
    assert driver.group.state == "PreparingRebalance"
    tokens = [driver.join(member) for member in members]
    assert error(driver, tokens[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {driver.responses[token].generation_id for token in tokens[:2]} == {2}


# -- assignments


def test_sync_whose_assignments_cannot_be_appended_fails_and_starts_a_rebalance() -> None:
    driver = GroupDriver()
    member, token = driver.join_new_member()
    driver.run_due_timers()
    driver.append_error = ErrorCode.NOT_COORDINATOR
    rejected = driver.sync(member, 1, {member: b"mine"})
    assert error(driver, rejected) is ErrorCode.NOT_COORDINATOR
    assert driver.group.state == "PreparingRebalance"
    assert not any(b"mine" in (value or b"") for _, value in driver.log)
    assert driver.responses[token].generation_id == 1


def test_sync_with_wrong_generation_or_protocol_is_rejected() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    assert error(driver, driver.sync(member, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert error(driver, driver.sync(member, 2)) is ErrorCode.ILLEGAL_GENERATION
    for protocol in [("connect", "range"), ("consumer", "roundrobin")]:
        token = driver.sync(member, 1, protocol=protocol)
        assert error(driver, token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sync_of_a_stable_group_returns_the_current_assignment() -> None:
    driver = GroupDriver()
    leader, follower = driver.create_stable_group(2)
    response = driver.responses[driver.sync(follower, 1, protocol=("consumer", "range"))]
    assert (response.assignment, response.protocol_type, response.protocol_name) == (
        follower.encode(),
        "consumer",
        "range",
    )
    assert driver.responses[driver.sync(leader, 1)].assignment == leader.encode()


def test_sync_returns_an_empty_assignment_to_an_unassigned_member_and_ignores_assignments_of_unknown_members() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    (leader, _), (follower, _) = driver.join_new_member(), driver.join_new_member()
    driver.advance(10)
    pending_sync = driver.sync(follower, 1)
    driver.sync(leader, 1, {leader: b"all", "unknown-member": b"x"})
    assert driver.responses[pending_sync].assignment == b""
    assert driver.group.state == "Stable"


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    (leader, _), (follower, _) = driver.join_new_member(rebalance_ms=9_000), driver.join_new_member(rebalance_ms=9_000)
    driver.advance(5_000)
    generation = driver.group.generation_id
    pending_sync = driver.sync(follower, generation)
    driver.advance(6_000)
    driver.heartbeat(leader, generation)
    driver.advance(4_000)
    assert error(driver, pending_sync) is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in driver.group.members
    assert driver.heartbeat(follower, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_member_metadata_and_assignments_of_any_protocol_type_are_returned_unchanged() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    metadata = [os.urandom(300) for _ in range(3)]
    joins = [
        driver.join_new_member(protocol_type="connect", protocols={"sessioned": data, "default": b"old"})
        for data in metadata
    ]
    driver.advance(10)
    leader_response = driver.responses[joins[0][1]]
    assert [member.metadata for member in leader_response.members] == metadata
    assignments = {member: os.urandom(300) for member, _ in joins}
    syncs = {member: driver.sync(member, 1) for member, _ in joins[1:]}
    syncs[joins[0][0]] = driver.sync(joins[0][0], 1, assignments)
    assert {member: driver.responses[token].assignment for member, token in syncs.items()} == assignments
    assert driver.group.subscribed_topics is None


# -- sessions


def test_member_without_heartbeats_is_removed_exactly_at_its_session_timeout() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2, session_ms=10_000)
    driver.advance(5_000)
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    driver.advance(4_999)
    assert second in driver.group.members
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    driver.advance(1)
    assert second not in driver.group.members
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.responses[driver.join(first)].generation_id == 2


def test_member_with_a_pending_join_needs_no_heartbeat() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2, session_ms=10_000, rebalance_ms=60_000)
    token = driver.join(first, rebalance_ms=60_000)
    for _ in range(10):
        driver.advance(5_000)
        assert driver.heartbeat(second, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert token not in driver.responses
    assert first in driver.group.members
    driver.join(second)
    assert driver.responses[token].generation_id == 2


def test_join_group_sync_group_heartbeat_and_offset_commit_each_extend_the_session_of_the_member() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2, session_ms=10_000)
    for request in (
        lambda: driver.sync(second, 1),
        lambda: driver.commit({("t", 0): 1}, second, 1),
        lambda: driver.join(second),
        lambda: driver.heartbeat(second, 1),
    ):
        driver.heartbeat(first, 1)
        driver.advance(9_000)
        request()
    driver.heartbeat(first, 1)
    driver.advance(9_000)
    assert second in driver.group.members


def test_heartbeat_with_wrong_generation_is_rejected_and_does_not_extend_the_session() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group(session_ms=10_000)
    driver.advance(9_000)
    assert driver.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    driver.advance(1_000)
    assert driver.group.state == "Empty"


def test_new_member_that_disconnects_during_its_first_join_is_removed() -> None:
    driver = GroupDriver()
    (first,) = driver.create_stable_group(session_ms=10_000, rebalance_ms=1_800_000)
    driver.join_new_member(rebalance_ms=1_800_000)
    for _ in range(60):
        driver.advance(5_000)
        driver.heartbeat(first, 1)
    assert list(driver.group.members) == [first]


# -- leaving


def test_group_becomes_empty_and_keeps_its_offsets_when_the_last_member_leaves() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    driver.commit({("t", 0): 7}, member, 1)
    response = driver.leave(member)
    assert [m.error_code for m in response.members] == [0]
    assert (driver.group.state, driver.group.generation_id) == ("Empty", 2)
    assert driver.fetch() == {("t", 0): 7}
    assert driver.replay_log().groups["g"].generation_id == 2


def test_leave_makes_the_remaining_members_rebalance_immediately() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2)
    driver.leave(second)
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.responses[driver.join(first)].generation_id == 2


def test_join_phase_completes_when_the_only_member_that_has_not_rejoined_leaves_the_group() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2)
    token = driver.join(first)
    driver.leave(second)
    assert driver.responses[token].generation_id == 2


def test_leave_response_has_an_error_code_for_each_member() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    response = driver.leave("unknown-member", member, ("", "no-such-instance"))
    assert [m.error_code for m in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.leave(member, version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    driver.group_id = "other-group"
    assert driver.leave(member).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_completes_the_pending_join_of_the_member() -> None:
    driver = GroupDriver()
    first, _ = driver.create_stable_group(2)
    token = driver.join(first)
    driver.leave(first)
    assert error(driver, token) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_with_a_pending_member_id_removes_the_pending_member() -> None:
    driver = GroupDriver()
    member = driver.responses[driver.join()].member_id
    assert driver.leave(member).members[0].error_code == 0
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID


# -- static members


def test_rejoin_of_a_static_member_changes_its_member_id_without_a_rebalance() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    joins = [driver.join(instance=name) for name in ("a", "b")]
    driver.advance(10)
    a, b = (driver.responses[token].member_id for token in joins)
    driver.sync(b, 1, instance="b")
    driver.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    for _ in range(3):
        response = driver.responses[driver.join(instance="b")]
        assert response.error_code == 0
        assert response.generation_id == 1
        assert response.leader == a
        assert response.member_id != b
        assert driver.heartbeat(b, 1, instance="b") is ErrorCode.FENCED_INSTANCE_ID
        assert error(driver, driver.sync(b, 1, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
        assert driver.commit({("t", 0): 1}, b, 1, instance="b") == [ErrorCode.FENCED_INSTANCE_ID]
        b = response.member_id
        assert driver.responses[driver.sync(b, 1, instance="b")].assignment == b"B"
        assert driver.heartbeat(a, 1, instance="a") is ErrorCode.NONE
    assert driver.group.generation_id == 1
    assert driver.replay_log().groups["g"].static_members == {"a": a, "b": b}


@pytest.mark.parametrize("version", [8, 9])
def test_join_response_to_a_rejoining_static_leader_sets_skip_assignment(version: int) -> None:
    driver = GroupDriver()
    responses = driver.responses
    token = driver.join(instance="a")
    driver.run_due_timers()
    member = responses[token].member_id
    driver.sync(member, 1, {member: b"A"}, instance="a")
    response = driver.responses[driver.join(instance="a", version=version)]
    if version == 9:
        assert (response.skip_assignment, response.leader) == (True, response.member_id)
        assert [m.member_id for m in response.members] == [response.member_id]
    else:
        assert (response.skip_assignment, response.leader, response.members) == (False, member, [])
    assert driver.group.generation_id == 1


def test_rejoin_of_a_static_member_with_changed_metadata_rebalances_only_if_the_protocol_changes() -> None:
    driver = GroupDriver()
    token = driver.join(instance="a")
    driver.run_due_timers()
    member = driver.responses[token].member_id
    driver.sync(member, 1, {member: b"A"}, instance="a")
    assert driver.responses[driver.join(instance="a", protocols=CHANGED)].generation_id == 1
    changed = driver.join(instance="a", protocols={"other": b"", "range": b""})
    assert driver.responses[changed].generation_id == 2, "the elected protocol changes, so the group rebalances"


def test_static_member_that_misses_a_rebalance_stays_until_its_session_timeout() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    options = {"session_ms": 60_000, "rebalance_ms": 10_000}
    joins = [driver.join(instance=name, **options) for name in ("a", "b")]
    driver.advance(9_000)
    a, b = (driver.responses[token].member_id for token in joins)
    driver.sync(b, 1, instance="b")
    driver.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    token = driver.join(a, instance="a", **options)
    driver.advance(10_000)
    assert driver.responses[token].generation_id == 2
    assert {m.member_id for m in driver.responses[token].members} == {a, b}
    driver.sync(a, 2, {a: b"A"}, instance="a")
    driver.advance(9_999)
    assert b in driver.group.members


def test_pending_join_of_a_replaced_static_member_returns_error_fenced_instance_id() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=5_000))
    superseded = driver.join(instance="a")
    driver.join(instance="a")
    assert error(driver, superseded) is ErrorCode.FENCED_INSTANCE_ID


def test_leave_with_only_an_instance_id_removes_the_static_member() -> None:
    driver = GroupDriver()
    driver.join(instance="a")
    driver.run_due_timers()
    assert driver.leave(("", "a")).members[0].error_code == 0
    assert not driver.group.members
    assert not driver.group.static_members


# -- describing, listing and deleting


def test_describe_returns_member_metadata_only_for_a_stable_group() -> None:
    driver = GroupDriver()
    first, _ = driver.create_stable_group(2)
    described = driver.shard.describe("g", 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    member = described.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (first, "client", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIBED["range"], first.encode())
    driver.join(first)
    described = driver.shard.describe("g", 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert described.members[0].member_metadata == b""


def test_describe_of_a_missing_group_returns_state_dead_before_version_6_and_an_error_from_version_6() -> None:
    driver = GroupDriver()
    assert [driver.shard.describe("x", v).error_code for v in (5, 6)] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
    assert driver.shard.describe("x", 5).group_state == "Dead"


def test_list_groups_filters_by_state_and_type() -> None:
    driver = GroupDriver()
    driver.create_stable_group()
    driver.group_id = "simple"
    driver.commit({("t", 0): 1})

    def listed(states: set[str] = frozenset(), types: set[str] = frozenset()) -> list[tuple[str, str, str]]:
        groups = driver.shard.list_groups(frozenset(states), frozenset(types))
        return [(g.group_id, g.group_state, g.protocol_type) for g in groups]

    assert listed() == [("g", "Stable", "consumer"), ("simple", "Empty", "")]
    assert listed({"stable"}) == [("g", "Stable", "consumer")]
    assert listed(types={"consumer"}) == []
    assert len(listed(types={"classic"})) == 2


def test_group_with_members_cannot_be_deleted() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    driver.commit({("t", 0): 1}, member, 1)
    assert driver.delete_group() is ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert driver.delete_group() is ErrorCode.NONE
    assert driver.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.fetch() == {}
    assert not driver.replay_log().groups
    assert driver.shard.next_deadline_ms() is None


# -- failover


def test_stable_group_survives_a_coordinator_restart() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2, session_ms=10_000)
    driver.restart()
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    assert driver.responses[driver.sync(second, 1)].assignment == second.encode()
    driver.advance(9_999)
    assert driver.group.state == "Stable"
    driver.advance(10_001)
    assert driver.group.state == "Empty"


@pytest.mark.parametrize("state", ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"])
def test_offsets_and_members_of_a_group_in_any_state_survive_a_coordinator_failover(state: str) -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2)
    driver.commit({("t", 0): 5}, first, 1)
    if state == "Empty":
        driver.leave(first, second)
    if state in ("PreparingRebalance", "CompletingRebalance"):
        driver.join(first)
    if state == "CompletingRebalance":
        driver.join(second)
    assert driver.group.state == state
    driver.restart()
    assert driver.fetch() == {("t", 0): 5}
    if state == "Empty":
        assert error(driver, driver.join(first)) is ErrorCode.UNKNOWN_MEMBER_ID
    else:
        tokens = [driver.join(member, protocols=CHANGED) for member in (first, second)]
        assert {driver.responses[token].generation_id for token in tokens} == {2}


def test_unload_of_an_offsets_partition_completes_pending_joins_with_error_not_coordinator() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=5_000))
    _, join = driver.join_new_member()
    driver.run(driver.shard.unload(ErrorCode.NOT_COORDINATOR))
    assert error(driver, join) is ErrorCode.NOT_COORDINATOR
