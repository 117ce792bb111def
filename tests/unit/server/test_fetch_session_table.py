"""Fetch sessions joined with partitions: when a replica that asks has everything, so that nothing need be read."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace_broker.replication.fetch_sessions import FetchSession
from headrace_broker.server.network.waiting import Waiting
from headrace_broker.server.replicas.fetch_session_table import FetchSessionTable

TOPIC_ID = b"t" * 16
LEADER, REPLICA = 1, 2


def partition(**changes: Any) -> Any:
    """t-0 with ten records, led by broker 1 in epoch 4."""
    replicas = SimpleNamespace(serves_consumers=lambda replica: False)
    log = SimpleNamespace(log_end_offset=10)
    given = {"leader": LEADER, "leader_epoch": 4, "log": log, "replicas": replicas, "sessions": []}
    return SimpleNamespace(**(given | {"topic_id": TOPIC_ID, "index": 0} | changes))


def asking(table: FetchSessionTable, held: Any, replica: int = REPLICA) -> FetchSession:
    """A session that asks for t-0 from offset 10 on, and whose place is noted."""
    wanted = FetchPartition(partition=0, current_leader_epoch=4, fetch_offset=10)
    request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])])
    session = table.find(request, replica)
    assert session is not None
    table.take(session, request, SimpleNamespace(by_id={TOPIC_ID: {0: held}}))  # type: ignore[arg-type]
    session.wanted[TOPIC_ID, 0].is_noted = True
    return session


def has_nothing(held: Any, replica: int = REPLICA, *, is_noted: bool = True) -> bool:
    async def ask() -> bool:
        table = FetchSessionTable(10, Random(1), Waiting(asyncio.get_running_loop()))
        session = asking(table, held, replica)
        session.wanted[TOPIC_ID, 0].is_noted = is_noted
        return table.has_nothing_for_replica(session, LEADER)

    return asyncio.run(ask())


def test_a_replica_at_the_end_of_the_log_gets_nothing() -> None:
    assert has_nothing(partition())


@pytest.mark.parametrize(
    "changes",
    [
        {"log": SimpleNamespace(log_end_offset=11)},
        {"leader": 3},
        {"leader_epoch": 5},
        {"replicas": None},
        {"replicas": SimpleNamespace(serves_consumers=lambda replica: True)},
    ],
    ids=["records", "another leader", "another epoch", "led no more", "consumers wait there"],
)
def test_what_a_replica_has_to_be_told_is_read(changes: dict[str, Any]) -> None:
    assert not has_nothing(partition(**changes))


def test_a_place_that_was_not_noted_is_looked_at() -> None:
    assert not has_nothing(partition(), is_noted=False)


def test_consumers_wait_for_other_things() -> None:
    assert not has_nothing(partition(), replica=-1)


def test_a_partition_that_is_not_here_is_looked_at() -> None:
    assert not has_nothing(None)


def test_a_session_that_was_closed_while_its_request_waited_hears_of_nothing_more() -> None:
    """The request is answered all the same, and nothing would ever let go of the session again."""

    async def listening() -> list[FetchSession]:
        held = partition()
        table = FetchSessionTable(10, Random(1), Waiting(asyncio.get_running_loop()))
        session = asking(table, held)
        table.find(FetchRequest(session_epoch=-1, session_id=session.session_id), REPLICA)
        table.attach(session, (TOPIC_ID, 0), SimpleNamespace(by_id={TOPIC_ID: {0: held}}))  # type: ignore[arg-type]
        return list(held.sessions)

    assert asyncio.run(listening()) == []


def test_who_is_due_can_be_answered_at_once_and_only_once() -> None:
    async def answered() -> list[str]:
        waiting = Waiting(asyncio.get_running_loop())
        answers: list[str] = []
        waiting.park(lambda: answers.append("produce"), ["t-0"], 10_000, required_offsets={"t-0": 5})
        waiting.advanced("t-0", 5, 100)
        assert answers == []  # the caller is not done
        waiting.flush()
        assert answers == ["produce"]
        await asyncio.sleep(0)
        waiting.close()
        return answers

    assert asyncio.run(answered()) == ["produce"]
