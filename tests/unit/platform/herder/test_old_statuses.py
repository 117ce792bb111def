"""Tests of the class OldStatuses, which replaces statuses that workers outside the group have written.

It replaces such a status only if the generation of the status is higher than that of this group. Otherwise, this is not
necessary, because a status of this group replaces a status with a lower or equal generation.
"""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest

from headrace.herder.assignment import Assignment
from headrace.herder.instance_effects import PutStatus
from headrace.herder.old_statuses import OldStatuses
from headrace.stores.status_records import StatusKey, encode_key, encode_status
from headrace.stores.status_store import State, Status
from headrace.stores.status_topic_state import StatusTopicState

pytestmark = pytest.mark.anyio

OWN = Assignment(frozenset("c"), frozenset({("c", 0), ("c", 1)}))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def read(state: StatusTopicState, task: int, worker_id: str, generation: int) -> None:
    status = Status(State.RUNNING, worker_id, generation)
    state.apply(task, encode_key(StatusKey("c", task)), encode_status(status))


async def test_status_of_a_later_generation_is_replaced_only_if_a_worker_outside_the_group_has_written_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = StatusTopicState()
    read(state, 0, "gone:1", 9)
    read(state, 1, "member:1", 9)
    instances = Mock(worker_id="own:1")
    instances.core.status_replaced = lambda name, task: [PutStatus(name, task, State.FAILED)]
    instances.carry_out = lambda effects: [
        state.put(each.connector, each.task, Status(each.state, "own:1", 2)) for each in effects
    ]
    statuses: Any = state
    old = OldStatuses(statuses, instances)
    assert not old.exist(Assignment(), 2)
    assert not old.exist(OWN, 9)
    assert old.exist(OWN, 2)

    async def worker_ids() -> set[str]:
        return {"own:1", "member:1"}

    await old.replace(OWN, 2, worker_ids)
    assert state.get("c").tasks == {0: Status(State.FAILED, "own:1", 2), 1: Status(State.RUNNING, "member:1", 9)}
    assert [record.args for record in caplog.records if record.levelno == logging.WARNING] == [("gone:1",)]
