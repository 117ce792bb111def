"""Tests of StatusTopicState, which combines this worker's writes with the records of other workers.

The records of other workers may arrive before or after the acknowledgement of a write.
"""

from __future__ import annotations

from headrace.stores.status_records import StatusKey, encode_key, encode_status
from headrace.stores.status_store import State, Status
from headrace.stores.status_topic_state import StatusTopicState

KEY = StatusKey("c", 0)
OWN = Status(State.RUNNING, "own", 5)
OTHER = Status(State.RUNNING, "other", 4)


def read(state: StatusTopicState, offset: int, status: Status | None) -> tuple[StatusKey, Status | None] | None:
    return state.apply(offset, encode_key(KEY), None if status is None else encode_status(status))


def test_status_record_is_not_applied_if_it_precedes_this_workers_own_write() -> None:
    state = StatusTopicState()
    state.put("c", 0, OWN)
    assert read(state, 0, OTHER) is None
    state.on_written(KEY, 2)
    assert read(state, 1, OTHER) is None
    assert state.get("c").tasks[0] == OWN


def test_status_record_is_applied_and_returned_if_it_follows_this_workers_own_write() -> None:
    state = StatusTopicState()
    state.put("c", 0, OWN)
    state.on_written(KEY, 2)
    assert read(state, 3, OTHER) == (KEY, OTHER)
    assert state.get("c").tasks[0] == OTHER
    assert read(state, 4, None) == (KEY, None)
    assert state.task_counts() == {}


def test_status_record_of_another_worker_is_applied_after_a_write_of_this_worker_has_failed() -> None:
    state = StatusTopicState()
    state.put("c", 0, OWN)
    state.on_written(KEY, None)
    assert read(state, 0, OTHER) == (KEY, OTHER)


def test_late_unassigned_status_of_another_worker_does_not_replace_the_running_status() -> None:
    """The owner writes RUNNING again, so that workers that start later do not read UNASSIGNED."""
    state = StatusTopicState()
    read(state, 0, OWN)
    late = Status(State.UNASSIGNED, "other", 5)
    assert read(state, 1, late) == (KEY, late)
    assert state.get("c").tasks[0] == OWN


def test_unassigned_status_replaces_the_running_status_of_the_same_worker() -> None:
    state = StatusTopicState()
    read(state, 0, OTHER)
    stopped = Status(State.UNASSIGNED, "other", OTHER.generation)
    assert read(state, 1, stopped) == (KEY, stopped)
    assert state.get("c").tasks[0] == stopped


def test_unassigned_status_is_not_written_if_the_stored_status_has_a_later_generation() -> None:
    state = StatusTopicState()
    read(state, 0, OWN)
    assert state.put("c", 0, Status(State.UNASSIGNED, "other", 4)) == []
    assert len(state.put("c", 0, Status(State.UNASSIGNED, "other", 5))) == 1
