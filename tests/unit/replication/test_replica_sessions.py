from __future__ import annotations

from random import Random

import pytest

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessions, SessionState


def opened(sessions: FetchSessions, replica_id: int) -> FetchSession:
    session = sessions.find(FetchRequest(session_id=0, session_epoch=0), replica_id, 0)
    assert session is not None
    return session


def test_what_still_arrives_of_a_lost_connection_of_a_replica_is_not_heard() -> None:
    """It would say that the replica is where it was, and the high watermark would wait for what is there already."""
    closed: list[FetchSession] = []
    sessions = FetchSessions(10, Random(1), closed.append)
    old, other = opened(sessions, 2), opened(sessions, 3)
    new = opened(sessions, 2)
    assert closed == [old]
    with pytest.raises(ApiError) as refusal:
        sessions.find(FetchRequest(session_id=old.session_id, session_epoch=old.epoch), 2, 1)
    assert refusal.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for session, replica in ((new, 2), (other, 3)):
        assert sessions.find(FetchRequest(session_id=session.session_id, session_epoch=1), replica, 1) is session


def test_consumers_may_have_many_sessions() -> None:
    closed: list[FetchSession] = []
    sessions = FetchSessions(10, Random(1), closed.append)
    assert len({opened(sessions, -1).session_id for _ in range(3)}) == 3
    assert closed == []


def test_a_partition_that_was_lost_and_came_back_is_not_forgotten() -> None:
    """A replica that was moved away and back asks for it under another key, and says in the same request that the
    former one is gone: the leader would forget both, answer at once, and so for ever."""
    wanted, topic_id = FetchPartition(partition=3, fetch_offset=5), b"t" * 16
    state, session = SessionState(), FetchSession(7, 1)
    request = FetchRequest()
    state.fill(request, [("former", topic_id, wanted)], [])
    session.take(request)
    state.answered(7)
    request = FetchRequest()
    state.fill(request, [("present", topic_id, FetchPartition(partition=3, fetch_offset=0))], ["former"])
    session.take(request)
    assert session.wanted[topic_id, 3].partition.fetch_offset == 0
    state.answered(7)
    request = FetchRequest()
    state.fill(request, [], ["present"])
    session.take(request)
    assert not session.wanted
