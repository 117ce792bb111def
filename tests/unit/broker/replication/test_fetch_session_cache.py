from __future__ import annotations

from random import Random

import pytest

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest
from headrace_broker.replication.fetch_sessions import FetchSession, FetchSessionCache, FetchSessionHandler


def open_session(sessions: FetchSessionCache, replica_id: int) -> FetchSession:
    session = sessions.get_or_create(FetchRequest(session_id=0, session_epoch=0), replica_id, 0)
    assert session is not None
    return session


def test_late_request_of_a_replaced_fetch_session_is_rejected() -> None:
    """If the late request were accepted, the leader would forget the follower's log end offset.

    The high watermark would then not advance.
    """
    closed: list[FetchSession] = []
    sessions = FetchSessionCache(10, Random(1), closed.append)
    old, other = open_session(sessions, 2), open_session(sessions, 3)
    new = open_session(sessions, 2)
    assert closed == [old]
    with pytest.raises(ApiError) as error:
        sessions.get_or_create(FetchRequest(session_id=old.session_id, session_epoch=old.epoch), 2, 1)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for session, replica in ((new, 2), (other, 3)):
        assert (
            sessions.get_or_create(FetchRequest(session_id=session.session_id, session_epoch=1), replica, 1) is session
        )


def test_new_fetch_session_of_a_consumer_does_not_close_other_sessions() -> None:
    closed: list[FetchSession] = []
    sessions = FetchSessionCache(10, Random(1), closed.append)
    assert len({open_session(sessions, -1).session_id for _ in range(3)}) == 3
    assert closed == []


def test_follower_does_not_list_a_partition_as_forgotten_if_the_same_request_fetches_it() -> None:
    """A replica is moved away from this broker and back between two fetch requests.

    If the second request listed the partition as forgotten, the leader would drop the partition from the session, and
    every later fetch would return immediately.
    """
    partition, topic_id = FetchPartition(partition=3, fetch_offset=5), b"t" * 16
    state, session = FetchSessionHandler(), FetchSession(7, 1)
    request = FetchRequest()
    state.fill(request, [("former", topic_id, partition)], [])
    session.update(request)
    state.on_response(7)
    request = FetchRequest()
    state.fill(request, [("present", topic_id, FetchPartition(partition=3, fetch_offset=0))], ["former"])
    session.update(request)
    assert session.partitions[topic_id, 3].partition.fetch_offset == 0
    state.on_response(7)
    request = FetchRequest()
    state.fill(request, [], ["present"])
    session.update(request)
    assert not session.partitions
