from __future__ import annotations

import pytest

from headrace_broker.client.fetch_core import Answer, FetchCore, FetchPartition
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from headrace_broker.records.reader import read_columns

P0, P1 = ("t", 0), ("t", 1)


def make_core(*, read_committed: bool = False) -> FetchCore:
    core = FetchCore(partition_bytes_max=1000, read_committed=read_committed, backoff_ms=lambda attempts: 100)
    core.assign([P0])
    core.seek(P0, 0)
    return core


def plan(core: FetchCore, now_ms: float = 0) -> dict[int, list[FetchPartition]]:
    return core.plan(now_ms, lambda topic, partition: (1, 5), lambda node: True)[0]


def batch_at(offset: int, count: int, **options: int | bool) -> bytes:
    columns = RecordColumns([b"%d" % (offset + index) for index in range(count)], timestamps=1)
    return bytes(build_batch(columns, base_offset=offset, **options))  # type: ignore[arg-type]


def receive(core: FetchCore, asked: FetchPartition, records: bytes, **options: object) -> Answer:
    core.fetch_done(1)
    answer = core.receive(1, asked, memoryview(records), high_watermark=100, **options)  # type: ignore[arg-type]
    core.response_size(1, len(records))
    return answer


def test_one_response_is_read_ahead_and_no_more() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    assert (asked.fetch_offset, asked.leader_epoch, asked.max_bytes) == (0, 5, 1000)
    assert plan(core) == {}  # in flight
    assert receive(core, asked, batch_at(0, 3)) is Answer.RECORDS
    assert plan(core) == {}  # one response waits
    chunk = core.take()
    assert chunk is not None
    assert (chunk.from_offset, chunk.next_offset, chunk.high_watermark) == (0, 3, 100)
    (asked,) = plan(core)[1]
    assert asked.fetch_offset == 3


def test_the_position_moves_when_the_chunk_is_taken_not_before() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    receive(core, asked, batch_at(0, 3))
    assert core.position(P0) == 0
    chunk = core.take()
    assert chunk is not None
    core.taken("t", 0, chunk.next_offset)
    assert core.position(P0) == 3


def test_an_answer_to_a_position_left_by_a_seek_is_thrown_away() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    core.seek(P0, 50)
    assert receive(core, asked, batch_at(0, 3)) is Answer.NOTHING
    assert core.take() is None
    assert plan(core)[1][0].fetch_offset == 50


def test_a_seek_drops_what_was_read_ahead() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    receive(core, asked, batch_at(0, 3))
    core.seek(P0, 1)
    assert core.take() is None
    assert plan(core)[1][0].fetch_offset == 1


def test_a_paused_partition_keeps_its_chunks_and_is_not_fetched() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    core.pause(P0)
    receive(core, asked, batch_at(0, 3))
    assert core.take() is None
    assert plan(core) == {}
    core.resume(P0)
    assert core.take() is not None


def test_a_cut_batch_at_the_end_is_dropped_and_fetched_again() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    second = batch_at(3, 2)
    receive(core, asked, batch_at(0, 3) + second[:-1])
    chunk = core.take()
    assert chunk is not None
    assert chunk.next_offset == 3
    assert read_columns(chunk.spans[0]).values == [b"0", b"1", b"2"]


def test_when_only_a_cut_batch_comes_more_is_asked_for() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    whole = bytes(build_batch(RecordColumns([b"x" * 5000], timestamps=1)))
    assert receive(core, asked, whole[:1000]) is Answer.NOTHING
    assert plan(core)[1][0].max_bytes >= len(whole)


def test_gaps_and_control_batches_move_the_position_on() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    marker = bytes(
        build_control_batch(ControlType.COMMIT, end_transaction_value(0), timestamp=1, base_offset=9, producer_id=4)
    )
    receive(core, asked, batch_at(5, 2) + marker)  # compaction removed 0-4 and 7-8
    chunk = core.take()
    assert chunk is not None
    assert chunk.next_offset == 10
    assert read_columns(chunk.spans[0]).values == [b"5", b"6"]


def test_aborted_transactions_are_left_out_for_read_committed() -> None:
    core = make_core(read_committed=True)
    (asked,) = plan(core)[1]
    aborted = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    committed = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    abort = bytes(
        build_control_batch(ControlType.ABORT, end_transaction_value(0), timestamp=1, base_offset=6, producer_id=4)
    )
    records = batch_at(0, 2) + batch_at(2, 2, **aborted) + batch_at(4, 2, **committed) + abort
    after = batch_at(7, 1, **{**aborted, "base_sequence": 2})
    receive(core, asked, records + after, aborted=[(4, 2)])
    chunk = core.take()
    assert chunk is not None
    values = [value for span in chunk.spans for value in read_columns(span).values]
    assert values == [b"0", b"1", b"4", b"5", b"7"]
    assert chunk.next_offset == 8


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Answer.REFRESH),
        (ErrorCode.UNKNOWN_TOPIC_ID, Answer.REFRESH),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Answer.RESET),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Answer.ERROR),
    ],
)
def test_errors(code: ErrorCode, answer: Answer) -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    core.fetch_done(1)
    assert core.refuse(asked, code, 0) is answer
    if answer is Answer.REFRESH:
        assert plan(core, 50) == {}
        assert core.retry_at_ms(50) == 100
        assert plan(core, 100)


def test_partitions_take_turns() -> None:
    core = FetchCore(partition_bytes_max=1000, backoff_ms=lambda attempts: 100)
    core.assign([P0, P1])
    core.seek(P0, 0)
    core.seek(P1, 0)
    first = plan(core)[1]
    assert [(part.topic, part.partition) for part in first] == [P0, P1]
    core.fetch_done(1)
    assert [(part.topic, part.partition) for part in plan(core)[1]] == [P1, P0]


def test_assignment_keeps_what_stays() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    receive(core, asked, batch_at(0, 3))
    core.assign([P0, P1])
    assert core.without_position() == [P1]
    core.assign([P1])
    assert core.take() is None


def plan_at(
    core: FetchCore, now_ms: float = 0, epoch: int = 5, replicas: tuple[int, ...] = (1, 2)
) -> tuple[dict[int, list[FetchPartition]], set[str]]:
    return core.plan(
        now_ms, lambda topic, partition: (1, epoch), lambda node: True, lambda t, p, node: node in replicas
    )


def sent_to_replica() -> tuple[FetchCore, FetchPartition]:
    """A partition whose leader, 1, has named replica 2 to be read from until 1000 ms."""
    core = make_core()
    (asked,) = plan(core)[1]
    core.fetch_done(1)
    core.prefer(asked, 2, 1000)
    (asked,) = plan(core, 10)[2]
    core.fetch_done(2)
    return core, asked


def test_a_preferred_replica_is_read_from_until_its_time_is_over() -> None:
    core, asked = sent_to_replica()
    assert not asked.is_from_leader
    assert list(plan_at(core, 999)[0]) == [2]
    core.fetch_done(2)
    assert list(plan_at(core, 1000)[0]) == [1]


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_an_error_of_a_replica_leads_back_to_the_leader_and_resets_nothing(code: ErrorCode) -> None:
    core, asked = sent_to_replica()
    assert core.refuse(asked, code, 10) is not Answer.RESET
    assert core.position(P0) == 0
    [asked] = plan(core, 10)[1]  # at once
    assert (asked.is_from_leader, asked.may_be_sent_away) == (True, False)
    core.fetch_done(1)
    assert plan(core, 1010)[1][0].may_be_sent_away


def test_a_replica_that_is_lost_is_read_from_no_more() -> None:
    core, asked = sent_to_replica()
    core.lose(asked, 10)
    assert list(plan(core, 10)) == [1]
    core, _ = sent_to_replica()
    core.avoid(2, 10)
    assert list(plan(core, 10)) == [1]


def test_a_new_leader_chooses_anew() -> None:
    core, _ = sent_to_replica()
    assert list(plan_at(core, 10, epoch=6)[0]) == [1]


def test_a_replica_that_the_metadata_does_not_show_has_it_refreshed() -> None:
    core, _ = sent_to_replica()
    plans, outdated = plan_at(core, 10, replicas=(1,))
    assert (list(plans), outdated) == ([1], {"t"})


def test_an_answer_that_comes_after_a_seek_prefers_nothing() -> None:
    core = make_core()
    (asked,) = plan(core)[1]
    core.seek(P0, 50)
    core.prefer(asked, 2, 1000)
    core.fetch_done(1)
    assert list(plan(core)) == [1]


def test_no_leader_before_the_one_that_told_the_position_is_asked() -> None:
    """KIP-320: one that does not know yet that it was replaced may call a committed offset out of range."""
    core = make_core()
    core.seek(P0, 52, leader_epoch=6)
    plans, outdated = core.plan(0, lambda topic, partition: (1, 5), lambda node: True)
    assert (plans, outdated) == ({}, {"t"})
    (asked,) = core.plan(10, lambda topic, partition: (2, 6), lambda node: True)[0][2]
    assert (asked.fetch_offset, asked.leader_epoch) == (52, 6)


def test_an_epoch_that_never_comes_is_not_waited_for_for_ever() -> None:
    """The offset was committed for a topic of this name that has been deleted since, say."""
    core = make_core()
    core.seek(P0, 52, leader_epoch=6)
    assert plan(core, now_ms=0) == {} == plan(core, now_ms=29_000)
    assert plan(core, now_ms=30_000)[1][0].fetch_offset == 52
