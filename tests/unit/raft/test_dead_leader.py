"""Two voters whose leader's process has died elect one of them at once, whatever their answers still say of it."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import Send
from headrace_broker.raft.nominees import Candidate, Prospective
from headrace_broker.raft.quorum_state import QuorumState
from support.raft_cluster import MemoryRaftLog

DEAD, OWN, OTHER = 1, 2, 3


def follower() -> Raft:
    """Node 2 of three, which follows node 1 in epoch 1."""
    state = QuorumState(1, DEAD, -1, (DEAD, OWN, OTHER))
    config = RaftConfig(node_id=OWN, voters=frozenset((DEAD, OWN, OTHER)), cluster_id="c")
    raft = Raft(config, MemoryRaftLog(), state, Random(1))
    raft.start(0)
    return raft


def pre_vote_to(node_id: int, effects: list[Any]) -> Any:
    return next(effect.request for effect in effects if isinstance(effect, Send) and effect.node_id == node_id)


def test_a_vote_that_still_names_the_dead_leader_counts() -> None:
    raft = follower()
    asked = pre_vote_to(OTHER, raft.refused(DEAD, 10))
    assert isinstance(raft.role, Prospective)
    raft.response(OTHER, asked, messages.vote_answer(ErrorCode.NONE, DEAD, 1, granted=True), 11)
    assert isinstance(raft.role, Candidate)


def test_a_refusal_that_names_the_leader_is_believed() -> None:
    raft = follower()
    asked = pre_vote_to(OTHER, raft.refused(DEAD, 10))
    raft.response(OTHER, asked, messages.vote_answer(ErrorCode.NONE, DEAD, 1, granted=False), 11)
    assert raft.leader_id == DEAD
