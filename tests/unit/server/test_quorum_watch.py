"""What an operator is told of a quorum that does not work, and clocks that are apart."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.quorum_watch import QuorumWatch
from headrace_broker.server.node import Node

VOTERS = {1: ("a", 9093), 2: ("b", 9093), 3: ("c", 9093)}
HOUR_MS = 3_600_000


def watch(leader_id: int = -1, **faults: str) -> tuple[QuorumWatch, list[str]]:
    raft = SimpleNamespace(leader_id=leader_id, config=SimpleNamespace(majority=2))
    peers = SimpleNamespace(faults={int(name[1:]): fault for name, fault in faults.items()})
    quorum: Any = SimpleNamespace(raft=raft, peers=peers, log=SimpleNamespace(voters=frozenset()))
    told: list[str] = []
    return QuorumWatch(quorum, VOTERS, 1, "CLUSTER", told.append), told


def test_why_there_is_no_controller() -> None:
    assert "have elected no leader yet" in watch(n2="does not answer")[0].why()
    lost = watch(n2="refuses connections", n3="does not answer")[0].why()
    assert lost.startswith("a majority of controller.quorum.voters is not reachable")
    assert "2@b:9093 refuses connections, 3@c:9093 does not answer" in lost
    assert watch(leader_id=2)[0].why().startswith("node 2 leads it, and not all ")


def test_a_lost_majority_is_told_now_and_then_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watched, _ = watch(n2="refuses connections", n3="refuses connections")
    for _ in range(300):  # ten minutes
        watched.look()
    assert caplog.text.count("has no leader") == 4 + 9  # after 4, 10, 20 and 40 s, then once a minute
    watched._quorum.raft.leader_id = 3  # type: ignore[misc]
    watched.look()
    watched.look()
    assert caplog.text.count("has a leader again, node 3") == 1


def test_who_is_refused_by_a_voter_does_not_start() -> None:
    watched, told = watch()
    for _ in range(2):
        watched._on_refusal(2, ErrorCode.INCONSISTENT_VOTER_SET)
    watched._on_refusal(3, ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert len(told) == 2
    assert "2@b:9093 does not count node 1 among its voters" in told[0]
    assert "here it is 1@a:9093,2@b:9093,3@c:9093" in told[0]
    assert "belongs to another cluster than this node" in told[1]
    another, told = watch()
    another._on_refusal(2, ErrorCode.INVALID_VOTER_KEY)
    assert told[0].startswith("at b:9093 there is another node than voter 2: controller.quorum.voters must name each")
    running, told = watch()
    running._caught_up.set()
    running._on_refusal(2, ErrorCode.INCONSISTENT_VOTER_SET)
    assert told == []


def test_a_voter_that_counts_others_than_the_leader_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    watched, told = watch(leader_id=2)
    watched._quorum.log.voters = frozenset((1, 2, 4))
    watched._on_caught_up()
    assert len(told) == 1
    assert "of node 1 names 1, 2, 3, the metadata quorum's leader counts 1, 2, 4: it must be the same in" in told[0]
    strange, told = watch(leader_id=4)
    strange.look()
    assert len(told) == 1
    assert "of node 1 names 1, 2, 3, the metadata quorum's leader is node 4: it must be the same in" in told[0]
    running, told = watch(leader_id=2)
    running._quorum.log.voters = frozenset((1, 2, 3))
    running._on_caught_up()
    running._quorum.log.voters = frozenset((1, 2, 4))
    caplog.clear()
    for _ in range(2):
        running.look()
    assert (told, caplog.text.count("counts 1, 2, 4")) == ([], 1)


def test_a_quorum_that_is_not_joined_in_time() -> None:
    async def work() -> None:
        watched, _ = watch(n2="refuses connections", n3="refuses connections")
        with pytest.raises(
            StartError, match=r"within 10 ms \(initial.broker.registration.timeout.ms\).*2@b:9093 refuses"
        ):
            await watched.caught_up(10)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("written_ms", "words"),
    [
        (1_000, None),
        (1_050, None),
        (None, None),
        (61_500 + 1_100, "61 s behind"),
        (-70_000, "71 s ahead of"),
        (1_100 + HOUR_MS + 1, "behind the controller's, more than log.message.timestamp.after.max.ms"),
        (1_000 - HOUR_MS - 1, "ahead of the controller's, more than"),
    ],
)
def test_clocks(written_ms: int | None, words: str | None, caplog: pytest.LogCaptureFixture) -> None:
    node: Any = SimpleNamespace(
        node_id=1,
        quorum=SimpleNamespace(log=SimpleNamespace(timestamp_of=lambda offset: written_ms)),
        now_ms=lambda: 1_100,
        config=SimpleNamespace(log_defaults=SimpleNamespace(message_timestamp_after_max_ms=HOUR_MS)),
    )
    if words is not None and "more than" in words:
        with pytest.raises(StartError, match=words):
            Node.check_clock(node, 5, 1_000)
        return
    Node.check_clock(node, 5, 1_000)
    assert (words or "") in caplog.text
    assert words is not None or not caplog.text
