"""Tests that two voters elect a new leader immediately when the leader's process dies.

A vote response may still name the dead leader, if the responding voter has not noticed the leader's death.
"""

from __future__ import annotations

from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import SendRequest
from headrace_broker.raft.nominees import Candidate, Prospective
from headrace_broker.raft.quorum_state import QuorumState
from support.raft_cluster import MemoryRaftLog

DEAD, OWN, OTHER = 1, 2, 3


def follower() -> Raft:
    """Return voter 2 of a quorum with three voters. Voter 2 follows voter 1 in epoch 1."""
    state = QuorumState(1, DEAD, -1, (DEAD, OWN, OTHER))
    config = RaftConfig(node_id=OWN, voters=frozenset((DEAD, OWN, OTHER)), cluster_id="c")
    raft = Raft(config, MemoryRaftLog(), state, Random(1))
    raft.start(0)
    return raft


def pre_vote_to(node_id: int, effects: list[Any]) -> Any:
    return next(effect.request for effect in effects if isinstance(effect, SendRequest) and effect.node_id == node_id)


def test_granted_pre_vote_is_counted_even_if_the_response_names_the_dead_leader() -> None:
    raft = follower()
    request = pre_vote_to(OTHER, raft.on_connection_refused(DEAD, 10))
    assert isinstance(raft.role, Prospective)
    raft.handle_response(OTHER, request, messages.vote_response(ErrorCode.NONE, DEAD, 1, granted=True), 11)
    assert isinstance(raft.role, Candidate)


def test_voter_follows_the_leader_if_a_pre_vote_response_contains_the_leader_id() -> None:
    raft = follower()
    request = pre_vote_to(OTHER, raft.on_connection_refused(DEAD, 10))
    raft.handle_response(OTHER, request, messages.vote_response(ErrorCode.NONE, DEAD, 1, granted=False), 11)
    assert raft.leader_id == DEAD
