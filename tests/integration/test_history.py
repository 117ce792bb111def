"""Tests of the history checker: a valid history passes, and each kind of violation is reported."""

from __future__ import annotations

import pytest

from integration.history import (
    Acknowledged,
    Commit,
    CommitFound,
    EndReported,
    Event,
    Failed,
    Positioned,
    Read,
    Sent,
    Value,
    longest_pause_s,
    violations,
)

A = [("a", number) for number in range(6)]
LOG: list[tuple[int, Value]] = list(enumerate(A))
VALID: list[Event] = [
    *(Sent(0.0, value) for value in A),
    *(Acknowledged(1.0 + offset, value, 0, offset) for offset, value in LOG[:4]),
    Acknowledged(5.0, A[4], 0, None),
    Positioned(2.0, "consumer", 0, 0),
    *(Read(6.0, "consumer", 0, offset, value) for offset, value in LOG),
    Positioned(2.0, "member-1", 0, None),
    *(Read(6.0, "member-1", 0, offset, value) for offset, value in LOG[:3]),
    Commit(6.1, 6.2, 0, 3, True),
    CommitFound(6.3, 0, 3),
    Positioned(6.4, "member-2", 0, None),
    *(Read(7.0, "member-2", 0, offset, value) for offset, value in LOG[3:]),
    Commit(7.1, 7.9, 0, 6, False),
    CommitFound(8.0, 0, 3),
    EndReported(6.5, 0, 4, False),
    EndReported(9.0, 0, 6, True),
]


def test_valid_history_has_no_violations() -> None:
    assert violations(VALID, {0: LOG}) == []


def test_longest_pause_is_the_longest_part_of_the_history_without_an_acknowledgement() -> None:
    assert longest_pause_s([Acknowledged(1.0, A[0], 0, 0), Acknowledged(4.0, A[1], 0, 1)]) == 3.0
    assert longest_pause_s([Sent(0.0, A[0]), Acknowledged(4.0, A[0], 0, 0), Sent(5.0, A[1])]) == 4.0
    assert longest_pause_s([]) == 0.0
    assert longest_pause_s([Acknowledged(number, A[number], number % 2, None) for number in range(5)], 1) == 2.0


@pytest.mark.parametrize(
    ("violation", "log"),
    [
        pytest.param("lost write: ('a', 4)", LOG[:4], id="lost"),
        pytest.param(
            "lost write: ('a', 0) was acknowledged at 0@0 and is at 0@1", list(enumerate([A[5], *A])), id="moved"
        ),
        pytest.param("duplicate: ('a', 5) is at 0@6 again", [*LOG, (6, A[5])], id="duplicate"),
        pytest.param("reordering: ('a', 4)", [*LOG[:4], (4, A[5]), (5, A[4])], id="reordering"),
        pytest.param("offset gap: partition 0 continues at 6", [*LOG[:5], (6, A[5])], id="gap"),
        pytest.param("no producer sent it", [*LOG, (6, ("b", 0))], id="unsent"),
        pytest.param("stale read: consumer read ('a', 5)", LOG[:5], id="read-record-missing"),
        pytest.param("reported to end at 6, it ends at 5", LOG[:5], id="reported-end-missing"),
    ],
)
def test_topic_log_that_contradicts_the_client_history_is_reported(
    violation: str, log: list[tuple[int, Value]]
) -> None:
    found = violations(VALID, {0: log})
    assert any(violation in line for line in found), found


@pytest.mark.parametrize(
    ("violation", "events"),
    [
        pytest.param("error: a: fatal", [Failed(9.0, "a", "fatal")], id="error"),
        pytest.param("stale read: x read ('a', 1) at 0@0", [Read(9.0, "x", 0, 0, A[1])], id="stale"),
        pytest.param("stale read: x read ('a', 0) at 0@9", [Read(9.0, "x", 0, 9, A[0])], id="beyond"),
        pytest.param("reported to end at 5, after 6 was known", [EndReported(9.0, 0, 5, True)], id="end-went-back"),
        pytest.param("read 0@2, expected 6", [Read(9.0, "consumer", 0, 2, A[2])], id="consumer-went-back"),
        pytest.param(
            "read 0@2, expected 1",
            [Positioned(9.0, "x", 0, 0), Read(9.0, "x", 0, 0, A[0]), Read(9.0, "x", 0, 2, A[2])],
            id="consumer-gap",
        ),
        pytest.param("committed offset is 2, after 3", [CommitFound(9.0, 0, 2)], id="commit-went-back"),
        pytest.param(
            "member-3 begins at 2, after 3",
            [Positioned(9.0, "member-3", 0, None), Read(9.1, "member-3", 0, 2, A[2])],
            id="member-went-back",
        ),
    ],
)
def test_client_event_that_contradicts_the_topic_log_is_reported(violation: str, events: list[Event]) -> None:
    found = violations([*VALID, *events], {0: LOG})
    assert any(violation in line for line in found), found


def test_history_check_reports_a_record_that_is_in_two_partitions() -> None:
    assert any("and at 0@0" in line for line in violations(VALID, {0: LOG, 1: [(0, A[0])]}))


def test_records_that_no_group_member_read_are_reported_if_they_are_below_the_committed_offset() -> None:
    unread = [event for event in VALID if not (isinstance(event, Read) and event.consumer == "member-1")]
    assert violations(unread, {0: LOG}) == ["group: 3 records of partition 0 were skipped, first 0"]


def test_commit_that_received_no_response_may_take_effect_later() -> None:
    events: list[Event] = [*VALID, Commit(8.2, 8.3, 0, 6, True), Commit(8.1, 8.9, 0, 5, False), CommitFound(9.0, 0, 5)]
    assert violations(events, {0: LOG}) == []
