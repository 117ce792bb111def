from __future__ import annotations

import pytest

from headrace_broker.client.membership_core import Generation, MembershipCore, State, Step
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.sync_group import SyncGroupResponse


def make_core(instance: str | None = None) -> MembershipCore:
    return MembershipCore(
        group_id="g",
        protocol_type="connect",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        heartbeat_interval_ms=3_000,
        group_instance_id=instance,
    )


def joined(member_id: str = "m", leader: str = "m", **fields: object) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=4,
        protocol_name="default",
        leader=leader,
        member_id=member_id,
        members=[JoinGroupResponseMember(member_id="m", metadata=b"x")],
        **fields,  # type: ignore[arg-type]
    )


def stable(core: MembershipCore, now_ms: float = 0) -> None:
    core.join_request([("default", b"x")])
    core.on_join(joined())
    assert core.on_sync(SyncGroupResponse(assignment=b"a"), now_ms) is Step.ASSIGNED


def test_a_new_member_is_given_its_id_first() -> None:
    core = make_core("instance")
    request = core.join_request([("default", b"x")])
    assert (request.member_id, request.group_instance_id, request.protocol_type) == ("", "instance", "connect")
    answer = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1")
    assert core.on_join(answer) is Step.JOIN
    assert core.join_request([("default", b"x")]).member_id == "m-1"


def test_the_leader_sends_everybodys_assignment() -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(joined()) is Step.LEAD
    assert core.generation == Generation(4, "m", "default", is_leader=True)
    request = core.sync_request({"m": b"1", "n": b"2"})
    assert {item.member_id: item.assignment for item in request.assignments} == {"m": b"1", "n": b"2"}
    assert core.on_sync(SyncGroupResponse(assignment=b"1"), 5) is Step.ASSIGNED
    assert core.state is State.STABLE
    assert core.heartbeat_due_ms() == 3_005


def test_a_follower_and_a_static_leader_that_came_back_only_ask() -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(joined(leader="other")) is Step.FOLLOW
    assert core.on_join(joined(skip_assignment=True)) is Step.FOLLOW


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Step.JOIN_LATER),
        (ErrorCode.NOT_COORDINATOR, Step.FIND_COORDINATOR),
        (ErrorCode.UNKNOWN_MEMBER_ID, Step.JOIN_ANEW),
        (ErrorCode.REBALANCE_IN_PROGRESS, Step.JOIN_LATER),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Step.FAIL),
        (ErrorCode.FENCED_INSTANCE_ID, Step.FAIL),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Step.FAIL),
    ],
)
def test_join_errors(code: ErrorCode, step: Step) -> None:
    core = make_core()
    core.join_request([("default", b"x")])
    assert core.on_join(JoinGroupResponse(error_code=code)) is step
    assert core.last_code is code


@pytest.mark.parametrize(
    ("code", "step", "keeps_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, Step.JOIN, True),
        (ErrorCode.ILLEGAL_GENERATION, Step.JOIN_ANEW, False),
        (ErrorCode.UNKNOWN_MEMBER_ID, Step.JOIN_ANEW, False),
        (ErrorCode.NOT_COORDINATOR, Step.FIND_COORDINATOR, True),
        (ErrorCode.NONE, Step.GO_ON, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Step.GO_ON, True),
        (ErrorCode.FENCED_INSTANCE_ID, Step.FAIL, True),
    ],
)
def test_heartbeat_answers(code: ErrorCode, step: Step, keeps_id: bool) -> None:
    core = make_core()
    stable(core)
    assert core.on_heartbeat(code, 10) is step
    assert (core.generation.member_id == "m") is keeps_id


def test_the_session_is_over_without_answers() -> None:
    core = make_core()
    stable(core, now_ms=1_000)
    core.heartbeat_request(4_000)
    assert not core.is_session_over(11_000)
    assert core.is_session_over(11_001)
    core.on_heartbeat(ErrorCode.NONE, 11_000)
    assert not core.is_session_over(20_000)


def test_leaving_names_the_member_but_a_static_one_stays() -> None:
    core = make_core()
    stable(core)
    request = core.leave_request("done", 5)
    assert request is not None
    assert [(item.member_id, item.reason) for item in request.members] == [("m", "done")]
    assert core.state is State.UNJOINED
    assert core.leave_request("again", 5) is None
    old = make_core()
    stable(old)
    request = old.leave_request("done", 2)
    assert request is not None
    assert (request.member_id, request.members) == ("m", [])
    static = make_core("instance")
    stable(static)
    assert static.leave_request("done", 5) is None
