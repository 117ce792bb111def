"""Tests of FetchSessionTable: the fetch of a caught-up follower does not read any log."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace_broker.replication.fetch_sessions import FetchSession
from headrace_broker.server.network.purgatory import Purgatory
from headrace_broker.server.replicas.fetch_session_table import FetchSessionTable

TOPIC_ID = b"t" * 16
LEADER, REPLICA = 1, 2


def partition(**changes: Any) -> Any:
    """Return partition t-0, which has ten records. Broker 1 leads it in epoch 4. `changes` replaces attributes."""
    replicas = SimpleNamespace(serves_consumers=lambda replica: False)
    log = SimpleNamespace(log_end_offset=10)
    given = {"leader": LEADER, "leader_epoch": 4, "log": log, "replicas": replicas, "sessions": []}
    return SimpleNamespace(**(given | {"topic_id": TOPIC_ID, "index": 0} | changes))


def new_session(table: FetchSessionTable, held: Any, replica: int = REPLICA) -> FetchSession:
    """Return a session in which `replica` fetches partition t-0 from offset 10.

    `held` is the leader's object for the partition, or None if the leader has none. The leader has already recorded
    the fetch offset.
    """
    wanted = FetchPartition(partition=0, current_leader_epoch=4, fetch_offset=10)
    request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])])
    session = table.find(request, replica)
    assert session is not None
    table.update(session, request, SimpleNamespace(by_id={TOPIC_ID: {0: held}}))  # type: ignore[arg-type]
    session.partitions[TOPIC_ID, 0].is_fetch_state_recorded = True
    return session


def has_nothing(held: Any, replica: int = REPLICA, *, is_recorded: bool = True) -> bool:
    async def check() -> bool:
        table = FetchSessionTable(10, Random(1), Purgatory(asyncio.get_running_loop()))
        session = new_session(table, held, replica)
        session.partitions[TOPIC_ID, 0].is_fetch_state_recorded = is_recorded
        return table.has_nothing_for_replica(session, LEADER)

    return asyncio.run(check())


def test_fetch_of_a_caught_up_follower_does_not_read_the_log() -> None:
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
    ids=["new records", "another leader", "another epoch", "no longer the leader", "serves consumers"],
)
def test_follower_fetch_reads_the_log_if_the_partition_has_new_records_or_a_new_leader_or_the_follower_serves_consumers(
    changes: dict[str, Any],
) -> None:
    assert not has_nothing(partition(**changes))


def test_follower_fetch_reads_the_log_if_the_leader_has_not_recorded_the_fetch_offset() -> None:
    assert not has_nothing(partition(), is_recorded=False)


def test_consumer_fetch_always_reads_the_log() -> None:
    assert not has_nothing(partition(), replica=-1)


def test_follower_is_not_considered_caught_up_if_it_fetches_a_partition_that_this_broker_does_not_have() -> None:
    assert not has_nothing(None)


def test_delayed_fetch_of_a_closed_session_does_not_attach_the_session_to_partitions_again() -> None:
    """The delayed fetch of a closed session still completes.

    If its completion attached the session again, the session would leak.
    """

    async def attached_sessions() -> list[FetchSession]:
        held = partition()
        table = FetchSessionTable(10, Random(1), Purgatory(asyncio.get_running_loop()))
        session = new_session(table, held)
        table.find(FetchRequest(session_epoch=-1, session_id=session.session_id), REPLICA)
        table.attach(session, (TOPIC_ID, 0), SimpleNamespace(by_id={TOPIC_ID: {0: held}}))  # type: ignore[arg-type]
        return list(held.sessions)

    assert asyncio.run(attached_sessions()) == []
