"""Tests that a request raises a voter's epoch by at most EPOCH_INCREASE_MAX.

The limit prevents a forged request from using up the epochs that later elections need.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import SendResponse
from headrace_broker.raft.quorum_state import EPOCH_INCREASE_MAX, EPOCH_MAX, QuorumState, QuorumStateError
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


def request_of_kind(kind: str, epoch: int) -> Request[Any]:
    if kind == "begin":
        return messages.begin_quorum_epoch_request(SENDER, OWN, epoch)
    if kind == "end":
        return messages.end_quorum_epoch_request(SENDER, epoch, [OWN])
    return messages.vote_request(SENDER, OWN, epoch, (0, 0), pre_vote=kind == "pre-vote")


def error_of(raft: Raft, request: Request[Any]) -> int:
    effects = raft.handle_request(request, None, 0)
    (response,) = [effect.response for effect in effects if isinstance(effect, SendResponse)]
    partition = messages.metadata_partition(messages.response_topics(response))
    assert partition is not None
    code: int = partition.error_code
    return code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [EPOCH + EPOCH_INCREASE_MAX + 1, EPOCH_MAX + 1, 2**31 - 1])
def test_request_that_raises_the_epoch_by_more_than_the_limit_is_rejected(kind: str, epoch: int) -> None:
    raft = voter()
    assert error_of(raft, request_of_kind(kind, epoch)) == ErrorCode.INVALID_REQUEST
    assert raft.epoch == EPOCH
    assert error_of(raft, request_of_kind(kind, EPOCH + EPOCH_INCREASE_MAX)) == ErrorCode.NONE
    assert raft.epoch == EPOCH + EPOCH_INCREASE_MAX


def test_response_with_epoch_beyond_maximum_is_ignored() -> None:
    raft = voter()
    response = messages.vote_response(ErrorCode.FENCED_LEADER_EPOCH, 3, 2**31 - 1)
    raft.handle_response(OTHER, request_of_kind("vote", EPOCH), response, 0)
    assert raft.epoch == EPOCH


@pytest.mark.parametrize("outdated", [(1,), (1, 2)])
def test_voter_that_missed_many_elections_learns_the_current_epoch_from_responses(outdated: tuple[int, ...]) -> None:
    cluster = RaftCluster(seed=1)
    for node_id, node in cluster.nodes.items():
        node.persisted = QuorumState(leader_epoch=3 if node_id in outdated else 30 * EPOCH_INCREASE_MAX)
        node.start()

    def all_follow() -> bool:
        return len({(node.raft.epoch, node.raft.leader_id) for node in cluster.nodes.values()}) == 1

    assert cluster.run(10_000, lambda: cluster.leader() is not None and all_follow())
    assert cluster.nodes[1].raft.epoch > 30 * EPOCH_INCREASE_MAX


@pytest.mark.parametrize("epoch", [-1, 2**31 - 1, 2**40])
def test_quorum_state_with_invalid_epoch_is_rejected(epoch: int) -> None:
    with pytest.raises(QuorumStateError, match="leaderEpoch"):
        QuorumState.from_json(QuorumState(leader_epoch=epoch).to_json())
