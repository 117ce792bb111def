"""Tests of GroupCore's decisions: effects of group events, reported state, and the leader's assignments."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from headrace.herder.assignment import EMPTY, Assignment
from headrace.herder.group_core import AwaitStop, GroupCore, GroupEffect, ReadConfigs, Rejoin, ReportStop, Run
from headrace.herder.group_protocol import (
    CONFIG_MISMATCH,
    GroupAssignment,
    GroupProtocolError,
    Version,
    WorkerMetadata,
    decode_assignment,
    encode_assignment,
    encode_metadata,
)
from headrace.stores.config_store import ConfigSnapshot, ConnectorState, TargetState

URL, LEADER_URL = "http://me/", "http://leader/"
DELAY = 300_000


def work(connectors: str = "", *tasks: tuple[str, int]) -> Assignment:
    return Assignment(frozenset(connectors), frozenset(tasks))


def snapshot(offset: int, **task_counts: int) -> ConfigSnapshot:
    states = {
        name: ConnectorState({}, TargetState.STARTED, 0, task_configs=({},) * count)
        for name, count in task_counts.items()
    }
    return ConfigSnapshot(offset, states)


def worker(highest: Version = Version.SESSIONED, *, offset: int = 5) -> GroupCore:
    core = GroupCore(URL, highest, DELAY)
    core.on_snapshot(snapshot(offset, a=2))
    return core


def assign(
    core: GroupCore,
    assigned: Assignment = EMPTY,
    revoked: Assignment = EMPTY,
    *,
    delay_ms: int = 0,
    error: int = 0,
    offset: int = 5,
    generation: int = 1,
    version: Version = Version.SESSIONED,
    leader: str = "leader",
) -> list[GroupEffect]:
    data = encode_assignment(GroupAssignment(leader, LEADER_URL, offset, assigned, revoked, delay_ms, error), version)
    return core.on_assignment(generation, version.protocol, data, "me")


def reported(core: GroupCore) -> Assignment:
    """Return the connectors and tasks that the worker's metadata reports as held."""
    held = core.metadata().held
    return EMPTY if held is None else held.assigned


ALL = work("a", ("a", 0), ("a", 1))
REJOIN_AFTER_CHANGE = Rejoin("connectors or tasks were created or deleted")
REJOIN_AFTER_STOP = Rejoin("revoked connectors and tasks have stopped")


# Assignments of the cooperative protocols


def test_new_worker_reports_no_assignment_and_the_offset_up_to_which_it_has_read_the_config_topic() -> None:
    assert GroupCore(URL, Version.SESSIONED, DELAY).metadata() == WorkerMetadata(URL, -1, None)
    assert worker().metadata() == WorkerMetadata(URL, 5, None)


def test_worker_runs_the_connectors_and_tasks_that_are_assigned_to_it() -> None:
    core = worker()
    assert assign(core, ALL) == [Run(ALL)]
    assert core.assignment == reported(core) == ALL
    assert (core.generation, core.leader_url, core.is_leader) == (1, LEADER_URL, False)


def test_worker_adds_a_cooperative_assignment_to_its_running_connectors_and_tasks() -> None:
    core = worker()
    assign(core, work("a"))
    assert assign(core, work("", ("a", 0)), generation=2) == [Run(work("a", ("a", 0)))]
    assert core.generation == 2


def test_worker_reads_the_config_topic_before_it_applies_an_assignment_with_a_later_config_offset() -> None:
    core = worker(offset=5)
    assert assign(core, ALL, offset=6) == [ReadConfigs(), Run(ALL)]


def test_worker_applies_an_assignment_with_an_earlier_config_offset_without_reading_the_config_topic() -> None:
    assert assign(worker(offset=7), ALL, offset=6) == [Run(ALL)]


def test_worker_rejoins_after_the_rebalance_delay_specified_in_its_assignment() -> None:
    effects = assign(worker(), work("a"), delay_ms=250)
    assert effects == [Rejoin("the delay of the scheduled rebalance has elapsed", 250), Run(work("a"))]


def test_worker_reports_revoked_tasks_as_assigned_until_they_have_stopped() -> None:
    core = worker()
    assign(core, ALL)
    kept, revoked = work("a", ("a", 0)), work("", ("a", 1))
    assert assign(core, revoked=revoked) == [Run(kept), ReportStop(revoked), Run(kept)]
    assert core.assignment == kept
    assert reported(core) == ALL
    assert core.stopped(revoked) == [REJOIN_AFTER_STOP]
    assert reported(core) == kept
    assert core.stopped(revoked) == []


def test_join_request_contains_no_revoked_connectors_or_tasks_after_a_revocation() -> None:
    core = worker()
    assign(core, ALL)
    assign(core, revoked=work("a"))
    held = core.metadata().held
    assert held is not None
    assert held.revoked == EMPTY


def test_worker_rejoins_when_the_last_of_its_revoked_tasks_has_stopped() -> None:
    core = worker()
    assign(core, ALL)
    assign(core, revoked=work("", ("a", 0), ("a", 1)))
    assert core.stopped(work("", ("a", 0))) == []
    assert core.stopped(work("", ("a", 1))) == [REJOIN_AFTER_STOP]


def test_worker_reports_a_revoked_connector_as_assigned_until_it_has_stopped_even_after_a_new_assignment() -> None:
    core = worker()
    assign(core, ALL)
    assign(core, revoked=work("a"))
    assert assign(core, work("b")) == [ReportStop(work("a")), Run(work("b", ("a", 0), ("a", 1)))]
    assert reported(core) == work("ab", ("a", 0), ("a", 1))
    assert core.stopped(work("a")) == [REJOIN_AFTER_STOP]


def test_worker_rejoins_only_once_if_the_leader_revokes_a_stopping_connector_again() -> None:
    core = worker()
    assign(core, work("a"))
    assign(core, revoked=work("a"))
    assert assign(core, revoked=work("a")) == [Run(EMPTY), ReportStop(work("a")), Run(EMPTY)]
    assert core.stopped(work("a")) == [REJOIN_AFTER_STOP]
    assert core.stopped(work("a")) == []


def test_worker_rejoins_only_when_the_connectors_and_tasks_of_two_revocations_have_stopped() -> None:
    core = worker()
    assign(core, ALL)
    assign(core, revoked=work("a"))
    effects = assign(core, revoked=work("", ("a", 0)))
    assert ReportStop(work("a", ("a", 0))) in effects
    assert core.stopped(work("a")) == []
    assert core.stopped(work("a", ("a", 0))) == [REJOIN_AFTER_STOP]


def test_worker_rejoins_when_its_revoked_tasks_have_stopped_even_if_one_was_assigned_to_it_again() -> None:
    """The leader revokes tasks 0 and 1, and then assigns task 0 to the same worker again.

    The worker rejoins when task 1 has stopped, although task 0 runs again.
    """
    core = worker()
    assign(core, ALL)
    assign(core, revoked=work("", ("a", 0)))
    assign(core, revoked=work("", ("a", 1)))
    assert core.stopped(work("", ("a", 0))) == []
    assert assign(core, work("", ("a", 0))) == [ReportStop(work("", ("a", 1))), Run(work("a", ("a", 0)))]
    assert core.stopped(work("", ("a", 1))) == [REJOIN_AFTER_STOP]


def test_worker_rejoins_if_the_leader_revokes_tasks_that_the_worker_does_not_hold() -> None:
    effects = assign(worker(), work("a"), work("b"))
    reason = "this worker does not run the connectors and tasks that the leader revoked"
    assert effects == [Rejoin(reason), Run(work("a"))]


def test_stop_of_a_revoked_connector_causes_no_rejoin_if_the_connector_has_been_assigned_to_the_worker_again() -> None:
    core = worker()
    assign(core, work("a"))
    assign(core, revoked=work("a"))
    assert assign(core, work("a")) == [Run(work("a"))]
    assert core.stopped(work("a")) == []
    assert reported(core) == work("a")


def test_worker_that_receives_an_assignment_with_an_error_keeps_its_tasks_and_rejoins_after_reading_the_config_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = worker()
    assign(core, ALL)
    with caplog.at_level(logging.INFO):
        effects = assign(core, error=CONFIG_MISMATCH, generation=2)
    assert effects == [ReadConfigs(), Rejoin("the assignment failed")]
    assert core.assignment == reported(core) == ALL
    assert core.generation == 2
    assert "the leader has read less of the config topic than another worker" in caplog.text


def test_unknown_error_code_of_an_assignment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert assign(worker(), error=7) == [ReadConfigs(), Rejoin("the assignment failed")]
    assert "error 7" in caplog.text


def test_worker_rejects_a_malformed_assignment_or_an_unknown_protocol_and_keeps_its_current_assignment() -> None:
    core = worker()
    assign(core, ALL)
    with pytest.raises(GroupProtocolError):
        core.on_assignment(2, "sessioned", b"\x00", "me")
    with pytest.raises(GroupProtocolError):
        core.on_assignment(2, "range", encode_assignment(GroupAssignment("l", "", 0), Version.EAGER), "me")
    assert (core.assignment, core.generation, core.version) == (ALL, 1, Version.SESSIONED)


# Rebalances and lost memberships


def test_worker_with_a_cooperative_protocol_keeps_its_tasks_running_during_a_rebalance() -> None:
    core = worker()
    assign(core, ALL, leader="me")
    assert core.is_leader
    assert core.on_join_prepare() == []
    assert core.assignment == ALL
    assert not core.is_leader


def test_worker_with_the_eager_protocol_stops_all_connectors_and_tasks_before_a_rebalance() -> None:
    core = worker(Version.EAGER)
    assert core.on_join_prepare() == []
    assert assign(core, ALL, version=Version.EAGER) == [ReadConfigs(), Run(ALL)]
    assert core.on_join_prepare() == [Run(EMPTY), AwaitStop(ALL)]
    assert core.assignment == EMPTY
    assert core.metadata().held is None


def test_assignment_of_the_eager_protocol_replaces_the_earlier_assignment() -> None:
    core = worker()
    assign(core, work("ab"))
    assert assign(core, work("c"), version=Version.EAGER) == [ReadConfigs(), Run(work("c"))]
    assert core.assignment == work("c")
    assert core.version is Version.EAGER


def test_worker_does_not_rejoin_for_an_earlier_revocation_after_a_downgrade_to_the_eager_protocol() -> None:
    core = worker()
    assign(core, work("ab"))
    assign(core, revoked=work("b"))
    assign(core, work("a"), version=Version.EAGER)
    assert core.stopped(work("b")) == []


def test_worker_uses_the_protocol_version_that_the_group_has_chosen() -> None:
    core = worker()
    assert core.version is core.highest is Version.SESSIONED
    assign(core, version=Version.COMPATIBLE)
    assert (core.version, core.highest) == (Version.COMPATIBLE, Version.SESSIONED)


def test_worker_that_loses_its_group_membership_stops_all_connectors_and_tasks() -> None:
    core = worker()
    assign(core, ALL, leader="me")
    assign(core, revoked=work("", ("a", 1)), leader="me")
    assert core.on_membership_lost() == [Run(EMPTY), AwaitStop(ALL)]
    assert core.metadata().held is None
    assert core.stopped(work("", ("a", 1))) == []
    assert (core.is_leader, core.leader_url) == (False, None)
    assert core.on_membership_lost() == []


def commits(core: GroupCore) -> set[int]:
    return {number for number in (0, 1) if core.may_commit("a", number)}


def test_tasks_may_commit_offsets_while_they_are_assigned_and_until_they_have_stopped_after_a_revocation() -> None:
    core = worker()
    assert commits(core) == set()
    assign(core, ALL)
    assert commits(core) == {0, 1}
    assign(core, revoked=work("", ("a", 1)))
    assert commits(core) == {0, 1}
    core.stopped(work("", ("a", 1)))
    assert commits(core) == {0}


def test_tasks_may_not_commit_offsets_after_their_worker_has_lost_its_membership() -> None:
    core = worker()
    assign(core, ALL)
    core.on_membership_lost()
    assert commits(core) == set()


def test_tasks_of_a_worker_with_the_eager_protocol_may_commit_offsets_when_they_stop_before_a_rebalance() -> None:
    core = worker(Version.EAGER)
    assign(core, ALL, version=Version.EAGER)
    core.on_join_prepare()
    assert commits(core) == {0, 1}
    assign(core, work("", ("a", 0)), version=Version.EAGER)
    assert commits(core) == {0}
    core.on_join_prepare()
    core.on_membership_lost()
    assert commits(core) == set()


# Changes of the config topic


@pytest.mark.parametrize(
    ("after", "rejoins"),
    [
        (snapshot(6, a=2), False),
        (snapshot(6, a=3), True),
        (snapshot(6, a=1), True),
        (snapshot(6, a=2, b=0), True),
        (snapshot(6), True),
    ],
    ids=["new configuration", "more tasks", "fewer tasks", "created connector", "deleted connector"],
)
def test_worker_rejoins_only_if_a_config_change_adds_or_removes_connectors_or_tasks(
    after: ConfigSnapshot, rejoins: bool
) -> None:
    core = worker()
    assign(core, ALL)
    assert core.on_snapshot(after) == ([REJOIN_AFTER_CHANGE] if rejoins else [])
    assert core.metadata().config_offset == 6


def test_worker_does_not_rejoin_for_a_config_change_that_its_assignment_already_includes() -> None:
    core = worker(offset=5)
    assign(core, ALL, offset=7)
    assert core.on_snapshot(snapshot(6, a=2, b=0)) == []
    assert core.on_snapshot(snapshot(7, a=2, b=1)) == []
    assert core.on_snapshot(snapshot(8, a=2, b=1)) == []
    assert core.on_snapshot(snapshot(9, a=2)) == [REJOIN_AFTER_CHANGE]


def test_worker_rejoins_after_a_rebalance_in_which_the_leader_had_not_read_a_config_change() -> None:
    core = worker(offset=5)
    assign(core, ALL)
    core.on_join_prepare()
    assert core.on_snapshot(snapshot(6, a=2, b=0)) == []
    assert assign(core, offset=5, generation=2) == [REJOIN_AFTER_CHANGE, Run(ALL)]
    core.on_join_prepare()
    assert assign(core, offset=6, generation=3) == [Run(ALL)]


# The leader


def metadata(url: str, offset: int, held: Assignment = EMPTY, version: Version = Version.SESSIONED) -> bytes:
    assignment = GroupAssignment("leader", URL, offset, held) if held else None
    return encode_metadata(WorkerMetadata(url, offset, assignment), version)


def compute(
    core: GroupCore, members: Mapping[str, bytes], version: Version = Version.SESSIONED, generation: int = 1
) -> dict[str, GroupAssignment]:
    found = core.compute_assignments(generation, version.protocol, "me", members, 0)
    return {member: decode_assignment(data) for member, data in found.items()}


@pytest.mark.parametrize(("offset", "is_behind"), [(4, False), (5, False), (6, True)])
def test_leader_is_behind_if_another_member_has_read_more_of_the_config_topic(offset: int, is_behind: bool) -> None:
    members = {"me": metadata(URL, 5), "other": metadata("http://other/", offset)}
    assert worker(offset=5).is_behind(members) is is_behind


def test_leader_that_is_behind_in_the_config_topic_sends_assignments_with_error_config_mismatch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = worker(offset=5)
    found = compute(core, {"me": metadata(URL, 5), "other": metadata("http://other/", 6)})
    expected = GroupAssignment("me", URL, 6, error=CONFIG_MISMATCH)
    assert found == {"me": expected, "other": expected}
    assert "has read to offset 5, but another worker has read to 6" in caplog.text


@pytest.mark.parametrize("version", [Version.EAGER, Version.SESSIONED])
def test_leader_assigns_no_connector_whose_name_the_protocol_cannot_encode(
    version: Version, caplog: pytest.LogCaptureFixture
) -> None:
    core = worker(version)
    core.on_snapshot(snapshot(6, a=2, **{"x" * 33_000: 1}))
    core.on_snapshot(snapshot(7, a=2, **{"x" * 33_000: 1}))
    found = compute(core, {"me": metadata(URL, 6, version=version)}, version)
    assert found["me"].assigned == ALL
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"Connector {'x' * 100}...: not assigned, because its name has more than")


@pytest.mark.parametrize("version", [Version.EAGER, Version.SESSIONED])
def test_leader_assigns_no_connectors_or_tasks_to_a_member_with_unreadable_metadata(
    version: Version, caplog: pytest.LogCaptureFixture
) -> None:
    core = worker(version)
    members = {"me": metadata(URL, 5, version=version), "other": b"\0"}
    assert not core.is_behind(members)
    found = compute(core, members, version)
    assert (found["me"].assigned, found["other"].assigned) == (ALL, EMPTY)
    assert "Group member other: no connectors and tasks are assigned to this member" in caplog.text


def test_leader_assigns_all_connectors_and_tasks_to_the_members() -> None:
    found = compute(worker(), {"me": metadata(URL, 5), "other": metadata("http://other/", 4)})
    assert found == {
        "me": GroupAssignment("me", URL, 5, work("a", ("a", 0))),
        "other": GroupAssignment("me", URL, 5, work("", ("a", 1))),
    }


def test_assignments_contain_the_config_offset_up_to_which_the_leader_has_read() -> None:
    """The leader read a record after it had joined. A worker must read this record before it starts the new tasks."""
    core = worker(offset=5)
    members = {"me": metadata(URL, 5), "other": metadata("http://other/", 5)}
    core.on_snapshot(snapshot(9, a=4))
    found = compute(core, members)
    assert {each.config_offset for each in found.values()} == {9}
    assert sum(len(each.assigned.tasks) for each in found.values()) == 4


def test_leader_uses_the_eager_assignor_for_the_eager_protocol() -> None:
    core = worker()
    members = {name: metadata(f"http://{name}/", 5, version=Version.EAGER) for name in ("me", "other")}
    found = compute(core, members, Version.EAGER)
    assert found == {
        "me": GroupAssignment("me", "http://me/", 5, work("a", ("a", 1))),
        "other": GroupAssignment("me", "http://me/", 5, work("", ("a", 0))),
    }


def test_encoded_assignments_have_the_version_of_the_protocol_that_the_group_has_chosen() -> None:
    for version in Version:
        data = worker().compute_assignments(1, version.protocol, "me", {"me": metadata(URL, 5)}, 0)["me"]
        assert data[:2] == version.to_bytes(2, "big")


def test_leader_handles_a_deleted_connector_and_a_departed_worker_in_one_rebalance() -> None:
    """The leader revokes the deleted connector b, and delays the assignment of the departed worker's task."""
    core = worker()
    everything = {"me": metadata(URL, 5), "other": metadata("http://other/", 5)}
    assign(core, compute(core, everything)["me"].assigned, leader="me")
    core.on_snapshot(snapshot(6, a=2))
    found = compute(core, {"me": metadata(URL, 6, work("ab", ("a", 0)))}, generation=2)
    assert found == {"me": GroupAssignment("me", URL, 6, EMPTY, work("b"), DELAY)}


def test_leader_assigns_tasks_of_departed_workers_without_delay_after_a_lost_response() -> None:
    """The leader computes the assignments of generation 1, but does not receive the SyncGroup response."""
    core = worker()
    compute(core, {"me": metadata(URL, 5), "other": metadata("http://other/", 5)})
    found = compute(core, {"me": metadata(URL, 5)}, generation=2)
    assert found["me"] == GroupAssignment("me", URL, 5, ALL)


def test_reelected_leader_assigns_tasks_of_departed_workers_without_delay() -> None:
    """The worker does not know what other leaders have assigned in the meantime, so it does not wait."""
    core = worker()
    assign(core, compute(core, {"me": metadata(URL, 5), "other": metadata("http://other/", 5)})["me"].assigned)
    found = compute(core, {"me": metadata(URL, 5, core.assignment)}, generation=2)
    assert found["me"].delay_ms == 0
    assert core.assignment | found["me"].assigned == ALL


def test_leader_that_lost_its_membership_assigns_tasks_of_departed_workers_without_delay() -> None:
    core = worker()
    both = {"me": metadata(URL, 5), "other": metadata("http://other/", 5)}
    assign(core, compute(core, both)["me"].assigned, leader="me")
    assert compute(core, {"me": metadata(URL, 5, core.assignment)}, generation=2)["me"].delay_ms == DELAY
    core.on_membership_lost()
    found = compute(core, {"me": metadata(URL, 5)}, generation=3)
    assert found["me"] == GroupAssignment("me", URL, 5, ALL)


def test_leader_returns_the_url_of_the_worker_that_owns_a_connector_or_task() -> None:
    core = worker()
    found = compute(core, {"me": metadata(URL, 5), "other": metadata("http://other/", 5)})
    assert core.owner_url("a", None) is None  # the leader has not received its own assignment
    assign(core, found["me"].assigned, leader="me")
    assert core.owner_url("a", None) == core.owner_url("a", 0) == URL
    assert core.owner_url("a", 1) == "http://other/"
    assert core.owner_url("b", None) is None
    core.on_join_prepare()
    assert core.owner_url("a", None) is None


def test_leader_assumes_that_a_revoked_task_may_still_run_until_its_owner_joins_without_the_task() -> None:
    core = worker()
    compute(core, {"me": metadata(URL, 5), "other": metadata("http://other/", 5)})
    assert core.may_run_task("a")  # the task is assigned to a member
    core.on_snapshot(snapshot(6, a=0))
    held = work("", ("a", 1))
    compute(core, {"me": metadata(URL, 6, work("a")), "other": metadata("http://other/", 6, held)}, generation=2)
    assert core.may_run_task("a")  # the task is revoked, but may not have stopped yet
    compute(core, {"me": metadata(URL, 6, work("a")), "other": metadata("http://other/", 6)}, generation=3)
    assert not core.may_run_task("a")


def test_worker_that_is_not_the_leader_does_not_return_the_url_of_the_owner_of_a_connector() -> None:
    core = worker()
    assign(core, ALL)
    assert core.owner_url("a", None) is None


def test_worker_remembers_its_leadership_during_a_rebalance() -> None:
    """The attribute `was_leader` becomes false when another worker becomes the leader or the membership is lost."""
    core = worker()
    assign(core, leader="me")
    core.on_join_prepare()
    assert core.was_leader
    assert not core.is_leader
    assign(core, leader="leader", generation=2)
    assert not core.was_leader
    assign(core, leader="me", generation=3)
    core.on_membership_lost()
    assert not core.was_leader
