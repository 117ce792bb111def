"""Tests of rule R8 in docs/broker.md: a voter persists its vote before it responds, and votes once per epoch."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import Effect, Persist, SendResponse
from headrace_broker.raft.quorum_state import QuorumState
from support.raft_cluster import MemoryRaftLog

OWN, FIRST, SECOND = 1, 2, 3
VOTERS = frozenset((OWN, FIRST, SECOND))
EPOCH = 5


def voter(state: QuorumState | None = None) -> Raft:
    raft = Raft(RaftConfig(node_id=OWN, voters=VOTERS), MemoryRaftLog(), state or QuorumState(), Random(1))
    raft.start(0)
    return raft


def send_vote_request(raft: Raft, candidate: int, *, epoch: int = EPOCH, pre_vote: bool = False) -> list[Effect]:
    config = RaftConfig(node_id=candidate, voters=VOTERS)
    return raft.handle_request(messages.vote_request(config, OWN, epoch, (0, 0), pre_vote=pre_vote), candidate, 0)


def response_partition(effects: list[Effect]) -> Any:
    (response,) = [effect.response for effect in effects if isinstance(effect, SendResponse)]
    return messages.metadata_partition(messages.response_topics(response))


def test_vote_is_persisted_before_its_response_is_sent() -> None:
    raft = voter()
    effects = send_vote_request(raft, FIRST)
    assert response_partition(effects).vote_granted
    kinds = [type(effect) for effect in effects]
    last_persist = len(kinds) - 1 - kinds[::-1].index(Persist)
    assert last_persist < kinds.index(SendResponse)
    state = effects[last_persist].state  # type: ignore[union-attr]
    assert (state.leader_epoch, state.voted_id) == (EPOCH, FIRST)


def test_voter_votes_once_per_epoch_even_after_restart() -> None:
    raft = voter()
    send_vote_request(raft, FIRST)
    for same in (raft, voter(raft.state)):
        assert not response_partition(send_vote_request(same, SECOND)).vote_granted
        # A candidate that did not receive the response repeats its request.
        assert response_partition(send_vote_request(same, FIRST)).vote_granted
    assert response_partition(send_vote_request(raft, SECOND, epoch=EPOCH + 1)).vote_granted


def test_pre_vote_is_not_persisted() -> None:
    raft = voter()
    effects = send_vote_request(raft, FIRST, epoch=0, pre_vote=True)
    assert response_partition(effects).vote_granted
    assert not any(isinstance(effect, Persist) for effect in effects)


def test_vote_request_of_an_earlier_epoch_is_rejected_with_error_fenced_leader_epoch() -> None:
    raft = voter(QuorumState(leader_epoch=EPOCH + 1))
    assert response_partition(send_vote_request(raft, FIRST)).error_code == ErrorCode.FENCED_LEADER_EPOCH
