"""Tests of QuorumWatch: reports about an unavailable or misconfigured quorum, and about clock skew."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.quorum_watch import QuorumWatch
from headrace_broker.server.node import Node
from support.virtual_time import run_in_virtual_time

VOTERS = {1: ("a", 9093), 2: ("b", 9093), 3: ("c", 9093)}
HOUR_MS = 3_600_000


def watch(leader_id: int = -1, **connection_errors: str) -> tuple[QuorumWatch, list[str]]:
    """Return a watch and the list of its reported misconfigurations. Argument `n2` is voter 2's connection error."""
    raft = SimpleNamespace(leader_id=leader_id, config=SimpleNamespace(majority=2))
    peers = SimpleNamespace(connection_errors={int(name[1:]): error for name, error in connection_errors.items()})
    quorum: Any = SimpleNamespace(raft=raft, peers=peers, log=SimpleNamespace(voters=frozenset()))
    reported: list[str] = []
    return QuorumWatch(quorum, VOTERS, 1, "CLUSTER", reported.append), reported


def test_reason_for_an_unavailable_quorum_describes_the_voters_and_the_leader() -> None:
    assert "have not elected a leader yet" in watch(n2="does not respond")[0].unavailable_reason()
    reason = watch(n2="refuses connections", n3="does not respond")[0].unavailable_reason()
    assert reason.startswith("a majority of controller.quorum.voters is not reachable")
    assert "2@b:9093 refuses connections, 3@c:9093 does not respond" in reason
    assert watch(leader_id=2)[0].unavailable_reason().startswith("node 2 is the leader, and this node has not fetched ")


def test_lost_majority_is_logged_periodically_and_new_leader_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watched, _ = watch(n2="refuses connections", n3="refuses connections")
    for _ in range(300):  # 300 checks take ten minutes
        watched.check()
    assert caplog.text.count("has no leader") == 4 + 9  # logged after 4, 10, 20 and 40 s, then once a minute
    watched._quorum.raft.leader_id = 3  # type: ignore[misc]
    watched.check()
    watched.check()
    assert caplog.text.count("has a leader again: node 3") == 1


def test_node_fails_to_start_if_a_voter_rejects_it_as_misconfigured() -> None:
    watched, reported = watch()
    for _ in range(2):
        watched._on_misconfigured_voter(2, ErrorCode.INCONSISTENT_VOTER_SET)
    watched._on_misconfigured_voter(3, ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert len(reported) == 2
    assert "2@b:9093 does not have node 1 in its controller.quorum.voters" in reported[0]
    assert "the value on this node is 1@a:9093,2@b:9093,3@c:9093" in reported[0]
    assert "does not belong to cluster" in reported[1]
    another, reported = watch()
    another._on_misconfigured_voter(2, ErrorCode.INVALID_VOTER_KEY)
    assert reported[0].startswith("the node at b:9093 is not voter 2: controller.quorum.voters must list each node")
    running, reported = watch()
    running._caught_up.set()
    running._on_misconfigured_voter(2, ErrorCode.INCONSISTENT_VOTER_SET)
    assert reported == []


def test_node_fails_to_start_if_its_configured_voters_differ_from_those_of_the_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched, reported = watch(leader_id=2)
    watched._quorum.log.voters = frozenset((1, 2, 4))
    watched._on_caught_up()
    assert len(reported) == 1
    assert "node 1 has 1, 2, 3, but the metadata quorum's leader has 1, 2, 4: configure the same" in reported[0]
    unknown_leader, reported = watch(leader_id=4)
    unknown_leader.check()
    assert len(reported) == 1
    assert "node 1 has 1, 2, 3, but the metadata quorum's leader is node 4: configure the same" in reported[0]
    running, reported = watch(leader_id=2)
    running._quorum.log.voters = frozenset((1, 2, 3))
    running._on_caught_up()
    running._quorum.log.voters = frozenset((1, 2, 4))
    caplog.clear()
    for _ in range(2):
        running.check()
    assert (reported, caplog.text.count("leader has 1, 2, 4")) == ([], 1)


def test_start_fails_when_the_node_cannot_join_the_quorum_in_time() -> None:
    async def work() -> None:
        watched, _ = watch(n2="refuses connections", n3="refuses connections")
        with pytest.raises(
            StartError, match=r"within 10 ms \(initial.broker.registration.timeout.ms\).*2@b:9093 refuses"
        ):
            await watched.wait_until_caught_up(10)

    run_in_virtual_time(work())


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
def test_clock_skew_to_the_controller_is_logged_and_skew_above_the_timestamp_limit_fails_the_start(
    written_ms: int | None, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
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
