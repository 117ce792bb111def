"""R8: a vote is on disk before it is given, and a voter gives one in each epoch, whatever happens in between."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import Effect, Persist, Reply
from headrace_broker.raft.quorum_state import QuorumState
from support.raft_cluster import MemoryRaftLog

OWN, FIRST, SECOND = 1, 2, 3
VOTERS = frozenset((OWN, FIRST, SECOND))
EPOCH = 5


def voter(state: QuorumState | None = None) -> Raft:
    raft = Raft(RaftConfig(node_id=OWN, voters=VOTERS), MemoryRaftLog(), state or QuorumState(), Random(1))
    raft.start(0)
    return raft


def asked(raft: Raft, candidate: int, *, epoch: int = EPOCH, pre_vote: bool = False) -> list[Effect]:
    config = RaftConfig(node_id=candidate, voters=VOTERS)
    return raft.handle(messages.vote_request(config, OWN, epoch, (0, 0), pre_vote=pre_vote), candidate, 0)


def answer(effects: list[Effect]) -> Any:
    (reply,) = [effect.response for effect in effects if isinstance(effect, Reply)]
    return messages.only_partition(messages.topics_of(reply))


def test_a_vote_is_on_disk_before_it_is_given() -> None:
    raft = voter()
    effects = asked(raft, FIRST)
    assert answer(effects).vote_granted
    kinds = [type(effect) for effect in effects]
    last_persist = len(kinds) - 1 - kinds[::-1].index(Persist)
    assert last_persist < kinds.index(Reply)
    state = effects[last_persist].state  # type: ignore[union-attr]
    assert (state.leader_epoch, state.voted_id) == (EPOCH, FIRST)


def test_one_vote_in_an_epoch_also_after_a_restart() -> None:
    raft = voter()
    asked(raft, FIRST)
    for same in (raft, voter(raft.state)):
        assert not answer(asked(same, SECOND)).vote_granted
        assert answer(asked(same, FIRST)).vote_granted  # its answer may have been lost
    assert answer(asked(raft, SECOND, epoch=EPOCH + 1)).vote_granted


def test_a_pre_vote_binds_nobody() -> None:
    raft = voter()
    effects = asked(raft, FIRST, epoch=0, pre_vote=True)
    assert answer(effects).vote_granted
    assert not any(isinstance(effect, Persist) for effect in effects)


def test_who_asks_in_an_epoch_that_is_over_gets_no_vote() -> None:
    raft = voter(QuorumState(leader_epoch=EPOCH + 1))
    assert answer(asked(raft, FIRST)).error_code == ErrorCode.FENCED_LEADER_EPOCH
