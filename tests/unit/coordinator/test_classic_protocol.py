"""The classic group protocol, scene by scene."""

from __future__ import annotations

import os

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.protocol.errors import ErrorCode
from support.groups import GroupDriver, consumer_subscription

SUBSCRIBED = {"range": consumer_subscription("t")}
CHANGED = {"range": consumer_subscription("t", "u")}


def error(driver: GroupDriver, token: int) -> ErrorCode:
    return ErrorCode(driver.replies[token].error_code)


# -- joining


def test_a_new_member_is_given_an_id_first_and_joins_with_it() -> None:
    driver = GroupDriver()
    refused = driver.replies[driver.join()]
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id == "client-id1"
    token = driver.join(refused.member_id)
    driver.settle()
    joined = driver.replies[token]
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, refused.member_id)
    assert [member.member_id for member in joined.members] == [refused.member_id]


def test_clients_before_version_4_join_at_once() -> None:
    driver = GroupDriver()
    token = driver.join(version=3)
    driver.settle()
    assert driver.replies[token].generation_id == 1


def test_an_id_given_out_is_forgotten_after_the_session_timeout() -> None:
    driver = GroupDriver()
    member = driver.replies[driver.join(session_ms=10_000)].member_id
    driver.advance(10_001)
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_leader_sees_all_members_and_the_others_none() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    joins = [driver.join_twice(protocols={"range": bytes([n])}) for n in range(3)]
    driver.advance(3_000)
    driver.advance(3_000)
    replies = [driver.replies[token] for _, token in joins]
    leader = replies[0].leader
    assert {r.generation_id for r in replies} == {1}
    assert {r.leader for r in replies} == {leader}
    for (member, _), reply in zip(joins, replies, strict=True):
        seen = {m.member_id: m.metadata for m in reply.members}
        assert seen == ({m: bytes([n]) for n, (m, _) in enumerate(joins)} if member == leader else {})


def test_a_new_group_waits_for_company_as_long_as_members_keep_coming() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    _, first = driver.join_twice(rebalance_ms=10_000)
    driver.advance(2_000)
    _, second = driver.join_twice(rebalance_ms=10_000)
    driver.advance(1_000)
    assert first not in driver.replies, "somebody came during the delay, so it is prolonged once"
    driver.advance(3_000)
    assert first in driver.replies
    assert second in driver.replies


def test_company_does_not_prolong_the_wait_beyond_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3_000))
    _, first = driver.join_twice(rebalance_ms=7_000)
    for _ in range(3):
        driver.advance(2_300)
        driver.join_twice(rebalance_ms=7_000)
    assert first not in driver.replies
    driver.advance(100)
    assert first in driver.replies


def test_more_metadata_than_could_ever_be_stored_is_refused_and_not_kept() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, batch_size_bytes_max=1000))
    assert error(driver, driver.join(protocols={"range": bytes(8001)})) is ErrorCode.INVALID_REQUEST
    assert driver.shard.groups == {}


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:
    driver = GroupDriver()
    assert error(driver, driver.join(session_ms=session_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not driver.shard.groups


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", SUBSCRIBED), ("consumer", {}), ("connect", SUBSCRIBED), ("consumer", {"x": b""})],
)
def test_members_must_share_a_type_and_a_protocol(protocol_type: str, protocols: dict[str, bytes]) -> None:
    driver = GroupDriver()
    driver.stable()
    token = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert error(driver, token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_nonsense_makes_no_group() -> None:
    driver = GroupDriver()
    assert error(driver, driver.join(protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    driver.group_id = ""
    assert error(driver, driver.join()) is ErrorCode.INVALID_GROUP_ID
    assert not driver.shard.groups
    assert not driver.log


def test_members_vote_for_the_protocol_among_those_all_support() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    offers = [{"a": b"a0", "b": b"b0", "x": b""}, {"b": b"b1", "a": b"a1"}, {"b": b"b2", "a": b"a2", "y": b""}]
    joins = [driver.join_twice(protocols=offer) for offer in offers]
    driver.advance(10)
    replies = [driver.replies[token] for _, token in joins]
    assert {reply.protocol_name for reply in replies} == {"b"}
    assert [m.metadata for m in replies[0].members] == [b"b0", b"b1", b"b2"]


def test_an_unknown_member_is_told_so_everywhere() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    assert error(driver, driver.join("stranger")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(driver, driver.sync("stranger", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.group_id = "elsewhere"
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(driver, driver.sync(member, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_old_versions_get_an_empty_string_where_newer_ones_get_null() -> None:
    driver = GroupDriver()
    assert driver.replies[driver.join("stranger", version=6)].protocol_name == ""
    assert driver.replies[driver.join("stranger", version=7)].protocol_name is None


# -- rebalancing


def test_g1_second_member_joins_a_stable_group() -> None:
    """Both have their part within the session time-out of the first."""
    driver = GroupDriver()
    (first,) = driver.stable()
    second, second_join = driver.join_twice()
    assert second_join not in driver.replies
    driver.advance(3_000)
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = driver.replies[driver.join(first)]
    assert rejoined.generation_id == driver.replies[second_join].generation_id == 2
    waiting = driver.sync(second, 2)
    assert waiting not in driver.replies
    mine = driver.replies[driver.sync(first, 2, {first: b"0", second: b"1"})]
    assert (mine.assignment, driver.replies[waiting].assignment) == (b"0", b"1")
    assert driver.heartbeat(first, 2) is driver.heartbeat(second, 2) is ErrorCode.NONE


def test_a_stable_follower_that_brings_nothing_new_keeps_the_generation() -> None:
    driver = GroupDriver()
    _, follower = driver.stable(2)
    reply = driver.replies[driver.join(follower)]
    assert (reply.generation_id, reply.members) == (1, [])
    assert driver.group.state == "Stable"


@pytest.mark.parametrize(("who", "protocols"), [(0, SUBSCRIBED), (1, CHANGED)])
def test_a_leaders_rejoin_or_changed_metadata_rebalances(who: int, protocols: dict[str, bytes]) -> None:
    driver = GroupDriver()
    members = driver.stable(2)
    token = driver.join(members[who], protocols=protocols)
    assert token not in driver.replies
    driver.join(members[1 - who])
    assert driver.replies[token].generation_id == 2


def test_members_that_miss_the_barrier_are_removed_at_the_rebalance_timeout() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_ms=30_000, rebalance_ms=20_000)
    token = driver.join(first, session_ms=30_000, rebalance_ms=20_000)
    driver.advance(19_999)
    assert token not in driver.replies
    driver.heartbeat(second, 1)
    driver.advance(1)
    assert [m.member_id for m in driver.replies[token].members] == [first]
    assert driver.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leadership_passes_on_when_the_leader_misses_the_barrier() -> None:
    driver = GroupDriver()
    _, second = driver.stable(2, session_ms=30_000, rebalance_ms=20_000)
    token = driver.join(second, protocols=CHANGED, session_ms=30_000, rebalance_ms=20_000)
    driver.advance(20_000)
    assert driver.replies[token].leader == second


def test_a_join_while_assignments_are_awaited_starts_over() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    joins = [driver.join(second, protocols=CHANGED), driver.join(first)]
    generation = driver.replies[joins[0]].generation_id
    waiting = driver.sync(second, generation)
    third, third_join = driver.join_twice()
    assert error(driver, waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error(driver, driver.sync(first, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(first)
    driver.join(second)
    assert driver.replies[third_join].generation_id == generation + 1
    assert third in driver.group.members


def test_a_join_sent_again_answers_the_one_before_it() -> None:
    """A connection answers in order: a request that nobody waits for must not block those behind it."""
    driver = GroupDriver()
    first, _ = driver.stable(2)
    lost = driver.join(first)
    again = driver.join(first)
    assert error(driver, lost) is ErrorCode.REBALANCE_IN_PROGRESS
    assert again not in driver.replies


def test_a_group_holds_no_more_than_its_maximum() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    members = driver.stable(2)
    token = driver.join()
    assert error(driver, token) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.replies[token].member_id == ""
    assert list(driver.group.members) == members


def test_a_group_that_is_too_large_when_loaded_shrinks() -> None:
    driver = GroupDriver()
    members = driver.stable(3)
    driver.config = GroupConfig(initial_rebalance_delay_ms=0, max_size=2)
    driver.restart()
    assert driver.group.state == "PreparingRebalance"
    tokens = [driver.join(member) for member in members]
    assert error(driver, tokens[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {driver.replies[token].generation_id for token in tokens[:2]} == {2}


# -- assignments


def test_assignments_are_in_the_log_before_anybody_hears_of_them() -> None:
    driver = GroupDriver()
    member, token = driver.join_twice()
    driver.settle()
    driver.append_error = ErrorCode.NOT_COORDINATOR
    refused = driver.sync(member, 1, {member: b"mine"})
    assert error(driver, refused) is ErrorCode.NOT_COORDINATOR
    assert driver.group.state == "PreparingRebalance"
    assert not any(b"mine" in (value or b"") for _, value in driver.log)
    assert driver.replies[token].generation_id == 1


def test_sync_is_refused_for_another_generation_or_protocol() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    assert error(driver, driver.sync(member, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert error(driver, driver.sync(member, 2)) is ErrorCode.ILLEGAL_GENERATION
    for protocol in [("connect", "range"), ("consumer", "roundrobin")]:
        token = driver.sync(member, 1, protocol=protocol)
        assert error(driver, token) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sync_of_a_stable_group_gives_the_assignment_again() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable(2)
    reply = driver.replies[driver.sync(follower, 1, protocol=("consumer", "range"))]
    assert (reply.assignment, reply.protocol_type, reply.protocol_name) == (follower.encode(), "consumer", "range")
    assert driver.replies[driver.sync(leader, 1)].assignment == leader.encode()


def test_members_the_leader_forgets_get_nothing_and_strangers_are_ignored() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    (leader, _), (follower, _) = driver.join_twice(), driver.join_twice()
    driver.advance(10)
    waiting = driver.sync(follower, 1)
    driver.sync(leader, 1, {leader: b"all", "stranger": b"x"})
    assert driver.replies[waiting].assignment == b""
    assert driver.group.state == "Stable"


def test_members_that_never_sync_are_removed() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    (leader, _), (follower, _) = driver.join_twice(rebalance_ms=9_000), driver.join_twice(rebalance_ms=9_000)
    driver.advance(5_000)
    generation = driver.group.generation_id
    waiting = driver.sync(follower, generation)
    driver.advance(6_000)
    driver.heartbeat(leader, generation)
    driver.advance(4_000)
    assert error(driver, waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in driver.group.members
    assert driver.heartbeat(follower, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_g7_bytes_of_any_protocol_type_pass_through_untouched() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    metadata = [os.urandom(300) for _ in range(3)]
    joins = [
        driver.join_twice(protocol_type="connect", protocols={"sessioned": data, "default": b"old"})
        for data in metadata
    ]
    driver.advance(10)
    leader_reply = driver.replies[joins[0][1]]
    assert [member.metadata for member in leader_reply.members] == metadata
    assignments = {member: os.urandom(300) for member, _ in joins}
    syncs = {member: driver.sync(member, 1) for member, _ in joins[1:]}
    syncs[joins[0][0]] = driver.sync(joins[0][0], 1, assignments)
    assert {member: driver.replies[token].assignment for member, token in syncs.items()} == assignments
    assert driver.group.subscribed_topics is None


# -- sessions


def test_g3_a_silent_member_is_removed_after_its_session_and_not_before() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_ms=10_000)
    driver.advance(5_000)
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    driver.advance(4_999)
    assert second in driver.group.members
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    driver.advance(1)
    assert second not in driver.group.members
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.join(first)].generation_id == 2


def test_g3_a_member_in_a_parked_join_needs_no_heartbeat() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_ms=10_000, rebalance_ms=60_000)
    token = driver.join(first, rebalance_ms=60_000)
    for _ in range(10):
        driver.advance(5_000)
        assert driver.heartbeat(second, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert token not in driver.replies
    assert first in driver.group.members
    driver.join(second)
    assert driver.replies[token].generation_id == 2


def test_any_request_of_a_member_refreshes_its_session() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_ms=10_000)
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


def test_heartbeats_of_another_generation_are_refused_and_do_not_count() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(session_ms=10_000)
    driver.advance(9_000)
    assert driver.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    driver.advance(1_000)
    assert driver.group.state == "Empty"


def test_a_new_member_that_vanishes_in_its_first_join_is_removed_in_the_end() -> None:
    driver = GroupDriver()
    (first,) = driver.stable(session_ms=10_000, rebalance_ms=1_800_000)
    driver.join_twice(rebalance_ms=1_800_000)
    for _ in range(60):
        driver.advance(5_000)
        driver.heartbeat(first, 1)
    assert list(driver.group.members) == [first]


# -- leaving


def test_the_last_one_out_leaves_an_empty_group_with_its_offsets() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    driver.commit({("t", 0): 7}, member, 1)
    reply = driver.leave(member)
    assert [m.error_code for m in reply.members] == [0]
    assert (driver.group.state, driver.group.generation_id) == ("Empty", 2)
    assert driver.fetch() == {("t", 0): 7}
    assert driver.replayed().groups["g"].generation_id == 2


def test_leaving_makes_the_others_rebalance_at_once() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    driver.leave(second)
    assert driver.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.join(first)].generation_id == 2


def test_leaving_may_close_the_barrier() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    token = driver.join(first)
    driver.leave(second)
    assert driver.replies[token].generation_id == 2


def test_leave_answers_for_each_member() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    reply = driver.leave("stranger", member, ("", "no-such-instance"))
    assert [m.error_code for m in reply.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.leave(member, version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    driver.group_id = "elsewhere"
    assert driver.leave(member).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_join_of_a_leaving_member_is_answered() -> None:
    driver = GroupDriver()
    first, _ = driver.stable(2)
    token = driver.join(first)
    driver.leave(first)
    assert error(driver, token) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_can_leave() -> None:
    driver = GroupDriver()
    member = driver.replies[driver.join()].member_id
    assert driver.leave(member).members[0].error_code == 0
    assert error(driver, driver.join(member)) is ErrorCode.UNKNOWN_MEMBER_ID


# -- static members


def test_g6_a_static_member_comes_back_without_a_rebalance() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    joins = [driver.join(instance=name) for name in ("a", "b")]
    driver.advance(10)
    a, b = (driver.replies[token].member_id for token in joins)
    driver.sync(b, 1, instance="b")
    driver.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    for _ in range(3):
        reply = driver.replies[driver.join(instance="b")]
        assert reply.error_code == 0
        assert reply.generation_id == 1
        assert reply.leader == a
        assert reply.member_id != b
        assert driver.heartbeat(b, 1, instance="b") is ErrorCode.FENCED_INSTANCE_ID
        assert error(driver, driver.sync(b, 1, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
        assert driver.commit({("t", 0): 1}, b, 1, instance="b") == [ErrorCode.FENCED_INSTANCE_ID]
        b = reply.member_id
        assert driver.replies[driver.sync(b, 1, instance="b")].assignment == b"B"
        assert driver.heartbeat(a, 1, instance="a") is ErrorCode.NONE
    assert driver.group.generation_id == 1
    assert driver.replayed().groups["g"].static_members == {"a": a, "b": b}


@pytest.mark.parametrize("version", [8, 9])
def test_a_returning_static_leader_does_not_assign_again(version: int) -> None:
    driver = GroupDriver()
    former = driver.replies
    token = driver.join(instance="a")
    driver.settle()
    member = former[token].member_id
    driver.sync(member, 1, {member: b"A"}, instance="a")
    reply = driver.replies[driver.join(instance="a", version=version)]
    if version == 9:
        assert (reply.skip_assignment, reply.leader) == (True, reply.member_id)
        assert [m.member_id for m in reply.members] == [reply.member_id]
    else:
        assert (reply.skip_assignment, reply.leader, reply.members) == (False, member, [])
    assert driver.group.generation_id == 1


def test_a_static_member_with_other_metadata_keeps_the_group_if_the_protocol_stays() -> None:
    driver = GroupDriver()
    token = driver.join(instance="a")
    driver.settle()
    member = driver.replies[token].member_id
    driver.sync(member, 1, {member: b"A"}, instance="a")
    assert driver.replies[driver.join(instance="a", protocols=CHANGED)].generation_id == 1
    changed = driver.join(instance="a", protocols={"other": b"", "range": b""})
    assert driver.replies[changed].generation_id == 2, "the elected protocol changes: rebalance"


def test_a_static_member_outlives_a_rebalance_it_misses_until_its_session_ends() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=1))
    options = {"session_ms": 60_000, "rebalance_ms": 10_000}
    joins = [driver.join(instance=name, **options) for name in ("a", "b")]
    driver.advance(9_000)
    a, b = (driver.replies[token].member_id for token in joins)
    driver.sync(b, 1, instance="b")
    driver.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    token = driver.join(a, instance="a", **options)
    driver.advance(10_000)
    assert driver.replies[token].generation_id == 2
    assert {m.member_id for m in driver.replies[token].members} == {a, b}
    driver.sync(a, 2, {a: b"A"}, instance="a")
    driver.advance(9_999)
    assert b in driver.group.members


def test_the_parked_requests_of_a_fenced_instance_are_answered() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=5_000))
    lost = driver.join(instance="a")
    driver.join(instance="a")
    assert error(driver, lost) is ErrorCode.FENCED_INSTANCE_ID


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    driver = GroupDriver()
    driver.join(instance="a")
    driver.settle()
    assert driver.leave(("", "a")).members[0].error_code == 0
    assert not driver.group.members
    assert not driver.group.static_members


# -- looking and deleting


def test_describe_shows_metadata_of_a_stable_group_only() -> None:
    driver = GroupDriver()
    first, _ = driver.stable(2)
    described = driver.shard.describe("g", 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    member = described.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (first, "client", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIBED["range"], first.encode())
    driver.join(first)
    described = driver.shard.describe("g", 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert described.members[0].member_metadata == b""


def test_describe_calls_a_missing_group_dead_or_not_found() -> None:
    driver = GroupDriver()
    assert [driver.shard.describe("x", v).error_code for v in (5, 6)] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
    assert driver.shard.describe("x", 5).group_state == "Dead"


def test_list_filters_by_state_and_type() -> None:
    driver = GroupDriver()
    driver.stable()
    driver.group_id = "simple"
    driver.commit({("t", 0): 1})

    def listed(states: set[str] = frozenset(), types: set[str] = frozenset()) -> list[tuple[str, str, str]]:
        groups = driver.shard.list_groups(frozenset(states), frozenset(types))
        return [(g.group_id, g.group_state, g.protocol_type) for g in groups]

    assert listed() == [("g", "Stable", "consumer"), ("simple", "Empty", "")]
    assert listed({"stable"}) == [("g", "Stable", "consumer")]
    assert listed(types={"consumer"}) == []
    assert len(listed(types={"classic"})) == 2


def test_g10_a_group_with_members_cannot_be_deleted() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    driver.commit({("t", 0): 1}, member, 1)
    assert driver.delete_group() is ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert driver.delete_group() is ErrorCode.NONE
    assert driver.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.fetch() == {}
    assert not driver.replayed().groups
    assert driver.shard.next_deadline_ms() is None


# -- failover


def test_g4_a_stable_group_survives_a_restart_of_the_coordinator() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_ms=10_000)
    driver.restart()
    assert driver.heartbeat(first, 1) is ErrorCode.NONE
    assert driver.replies[driver.sync(second, 1)].assignment == second.encode()
    driver.advance(9_999)
    assert driver.group.state == "Stable"
    driver.advance(10_001)
    assert driver.group.state == "Empty"


@pytest.mark.parametrize("state", ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"])
def test_g4_members_find_back_after_a_failover_in_any_state(state: str) -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
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
        assert {driver.replies[token].generation_id for token in tokens} == {2}


def test_losing_the_partition_answers_everything_that_waits() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=5_000))
    _, join = driver.join_twice()
    driver.run(driver.shard.unload(ErrorCode.NOT_COORDINATOR))
    assert error(driver, join) is ErrorCode.NOT_COORDINATOR
