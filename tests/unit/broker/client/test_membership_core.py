from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace_broker.client.membership import GroupMembership
from headrace_broker.client.membership_core import Generation, MembershipCore, MemberState, NextStep
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.sync_group import SyncGroupResponse


def make_core(instance: str | None = None, first_heartbeat_ms: int | None = None) -> MembershipCore:
    return MembershipCore(
        group_id="g",
        protocol_type="connect",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        heartbeat_interval_ms=3_000,
        group_instance_id=instance,
        first_heartbeat_ms=first_heartbeat_ms,
    )


def join_response(member_id: str = "m", leader: str = "m", **fields: object) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=4,
        protocol_name="default",
        leader=leader,
        member_id=member_id,
        members=[JoinGroupResponseMember(member_id="m", metadata=b"x")],
        **fields,  # type: ignore[arg-type]
    )


def make_stable(core: MembershipCore, now_ms: float = 0) -> None:
    core.join_request([("default", b"x")])
    core.on_join(join_response())
    assert core.on_sync(SyncGroupResponse(assignment=b"a"), now_ms) is NextStep.ASSIGNED


def test_membership_session_ends_if_no_response_arrives_within_the_session_timeout() -> None:
    core, cluster = make_core(), SimpleNamespace(config=SimpleNamespace(request_timeout_ms=1_000), now_ms=lambda: now)
    membership = GroupMembership(cluster, core, None, 60_000)  # type: ignore[arg-type]
    now = 0
    assert not membership.has_session
    make_stable(core)
    now = 10_000
    assert membership.has_session
    now = 10_001
    assert not membership.has_session
    core.expire_session()
    assert not membership.has_session


def test_new_member_joins_with_the_member_id_from_the_member_id_required_response() -> None:
    core = make_core("instance")
    request = core.join_request([("default", b"x")])
    assert (request.member_id, request.group_instance_id, request.protocol_type) == ("", "instance", "connect")
    response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1")
    assert core.on_join(response) is NextStep.JOIN
    assert core.join_request([("default", b"x")]).member_id == "m-1"


def test_group_leader_sends_assignments_of_all_members() -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(join_response()) is NextStep.LEAD
    assert core.generation == Generation(4, "m", "default", is_leader=True)
    request = core.sync_request({"m": b"1", "n": b"2"})
    assert {item.member_id: item.assignment for item in request.assignments} == {"m": b"1", "n": b"2"}
    assert core.on_sync(SyncGroupResponse(assignment=b"1"), 5) is NextStep.ASSIGNED
    assert core.state is MemberState.STABLE
    assert core.heartbeat_due_ms() == 3_005


def test_member_sends_no_assignments_if_another_member_leads_the_group_or_if_skip_assignment_is_true() -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(join_response(leader="other")) is NextStep.FOLLOW
    assert core.on_join(join_response(skip_assignment=True)) is NextStep.FOLLOW


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NextStep.JOIN_LATER),
        (ErrorCode.NOT_COORDINATOR, NextStep.FIND_COORDINATOR),
        (ErrorCode.UNKNOWN_MEMBER_ID, NextStep.JOIN_AS_NEW_MEMBER),
        (ErrorCode.REBALANCE_IN_PROGRESS, NextStep.JOIN_LATER),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NextStep.FAIL),
        (ErrorCode.FENCED_INSTANCE_ID, NextStep.FAIL),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, NextStep.FAIL),
    ],
)
def test_join_group_error_code_determines_the_next_step_of_the_member(code: ErrorCode, step: NextStep) -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(JoinGroupResponse(error_code=code)) is step
    assert core.last_code is code


@pytest.mark.parametrize(
    ("code", "step", "keeps_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, NextStep.JOIN, True),
        (ErrorCode.ILLEGAL_GENERATION, NextStep.JOIN_AS_NEW_MEMBER, False),
        (ErrorCode.UNKNOWN_MEMBER_ID, NextStep.JOIN_AS_NEW_MEMBER, False),
        (ErrorCode.NOT_COORDINATOR, NextStep.FIND_COORDINATOR, True),
        (ErrorCode.NONE, NextStep.CONTINUE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NextStep.CONTINUE, True),
        (ErrorCode.FENCED_INSTANCE_ID, NextStep.FAIL, True),
    ],
)
def test_heartbeat_error_code_determines_the_next_step_of_the_member(
    code: ErrorCode, step: NextStep, keeps_id: bool
) -> None:
    core = make_core()
    make_stable(core)
    assert core.on_heartbeat(code, 10) is step
    assert (core.generation.member_id == "m") is keeps_id


def test_delay_of_heartbeats_doubles_after_each_assignment_up_to_the_heartbeat_interval() -> None:
    core = make_core(first_heartbeat_ms=400)
    for assigned_ms in (0, 100_000):
        make_stable(core, assigned_ms)
        sent = []
        for _ in range(5):
            sent.append(core.heartbeat_due_ms())
            core.heartbeat_request(sent[-1])
        assert [each - assigned_ms for each in sent] == [400, 1_200, 2_800, 5_800, 8_800]


def test_session_expires_if_a_member_receives_no_heartbeat_responses() -> None:
    core = make_core()
    make_stable(core, now_ms=1_000)
    core.heartbeat_request(4_000)
    assert not core.is_session_expired(11_000)
    assert core.is_session_expired(11_001)
    core.on_heartbeat(ErrorCode.NONE, 11_000)
    assert not core.is_session_expired(20_000)


def test_dynamic_member_sends_leave_group_but_static_member_does_not() -> None:
    core = make_core()
    make_stable(core)
    request = core.leave_request("done", 5)
    assert request is not None
    assert [(item.member_id, item.reason) for item in request.members] == [("m", "done")]
    assert core.state is MemberState.UNJOINED
    assert core.leave_request("again", 5) is None
    old = make_core()
    make_stable(old)
    request = old.leave_request("done", 2)
    assert request is not None
    assert (request.member_id, request.members) == ("m", [])
    static = make_core("instance")
    make_stable(static)
    assert static.leave_request("done", 5) is None


def test_member_that_receives_no_join_group_response_drops_its_generation_when_its_session_expires() -> None:
    core = make_core()
    assert core.on_no_response(90_000) is NextStep.FIND_COORDINATOR  # the member has no assignment to drop
    make_stable(core, 1_000)
    core.join_request([("default", b"x")])
    assert core.on_no_response(11_000) is NextStep.FIND_COORDINATOR
    assert core.generation.member_id == "m"
    assert core.on_no_response(11_001) is NextStep.JOIN_AS_NEW_MEMBER
    assert (core.generation.generation_id, core.generation.member_id) == (
        -1,
        "m",
    )  # a coordinator that was down still knows this member id
    assert core.join_request([("default", b"x")]).member_id == "m"
    assert core.on_no_response(99_000) is NextStep.FIND_COORDINATOR


def test_member_waits_for_a_heartbeat_response_at_most_until_its_session_expires() -> None:
    core = make_core()
    make_stable(core, 1_000)
    assert core.session_remaining_ms(4_000) == 7_000
    assert core.session_remaining_ms(20_000) == 1
