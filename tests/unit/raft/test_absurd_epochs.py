"""Anybody may send a request: none takes the epoch so far that elections come to their end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import Reply
from headrace_broker.raft.quorum_state import EPOCH_LEAP_MAX, EPOCH_MAX, QuorumState, QuorumStateError
from support.raft_cluster import MemoryRaftLog, RaftCluster

OWN, OTHER = 1, 2
VOTERS = frozenset((OWN, OTHER, 3))
EPOCH = 5
SENDER = RaftConfig(node_id=OTHER, voters=VOTERS)
KINDS = ("vote", "pre-vote", "begin", "end")


def voter() -> Raft:
    state = QuorumState(leader_epoch=EPOCH)
    raft = Raft(RaftConfig(node_id=OWN, voters=VOTERS), MemoryRaftLog(), state, Random(1))
    raft.start(0)
    return raft


def claim(kind: str, epoch: int) -> Request[Any]:
    if kind == "begin":
        return messages.begin_request(SENDER, OWN, epoch)
    if kind == "end":
        return messages.end_request(SENDER, epoch, [OWN])
    return messages.vote_request(SENDER, OWN, epoch, (0, 0), pre_vote=kind == "pre-vote")


def error_of(raft: Raft, request: Request[Any]) -> int:
    (reply,) = [effect.response for effect in raft.handle(request, None, 0) if isinstance(effect, Reply)]
    partition = messages.only_partition(messages.topics_of(reply))
    assert partition is not None
    code: int = partition.error_code
    return code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [EPOCH + EPOCH_LEAP_MAX + 1, EPOCH_MAX + 1, 2**31 - 1])
def test_a_leap_is_refused_and_a_step_is_taken(kind: str, epoch: int) -> None:
    raft = voter()
    assert error_of(raft, claim(kind, epoch)) == ErrorCode.INVALID_REQUEST
    assert raft.epoch == EPOCH
    assert error_of(raft, claim(kind, EPOCH + EPOCH_LEAP_MAX)) == ErrorCode.NONE
    assert raft.epoch == EPOCH + EPOCH_LEAP_MAX


def test_an_answer_tells_of_no_epoch_without_room_behind_it() -> None:
    raft = voter()
    raft.response(OTHER, claim("vote", EPOCH), messages.vote_answer(ErrorCode.FENCED_LEADER_EPOCH, 3, 2**31 - 1), 0)
    assert raft.epoch == EPOCH


@pytest.mark.parametrize("late", [(1,), (1, 2)])
def test_who_was_away_for_many_elections_is_back_at_once(late: tuple[int, ...]) -> None:
    cluster = RaftCluster(seed=1)
    for node_id, node in cluster.nodes.items():
        node.persisted = QuorumState(leader_epoch=3 if node_id in late else 30 * EPOCH_LEAP_MAX)
        node.start()

    def all_follow() -> bool:
        return len({(node.raft.epoch, node.raft.leader_id) for node in cluster.nodes.values()}) == 1

    assert cluster.run(10_000, lambda: cluster.leader() is not None and all_follow())
    assert cluster.nodes[1].raft.epoch > 30 * EPOCH_LEAP_MAX


@pytest.mark.parametrize("epoch", [-1, 2**31 - 1, 2**40])
def test_a_damaged_quorum_state_is_refused(epoch: int) -> None:
    with pytest.raises(QuorumStateError, match="leaderEpoch"):
        QuorumState.from_json(QuorumState(leader_epoch=epoch).to_json())
