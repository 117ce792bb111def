"""Tests of SinkTaskCore. Each test passes events to the core and compares the effects that the core returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.api.errors import DataError, RecordErrors, RetriableError
from headrace.data.batch import SinkBatch
from headrace.data.sink_records import SinkRecords
from headrace.runtime.sink_task_core import (
    Close,
    Closed,
    Commit,
    Convert,
    Effect,
    JoinGroup,
    LeaveGroup,
    Open,
    Opened,
    Poll,
    PreCommit,
    Put,
    Release,
    Report,
    Reported,
    Seek,
    SetPaused,
    SinkTaskCore,
)
from headrace.runtime.task_effects import Fail, ReportState, Wait
from support.sink_chunks import Chunk, records_of

A, B = ("t", 0), ("t", 1)


def assigned_core(*partitions: tuple[str, int], **options: Any) -> SinkTaskCore:
    core = SinkTaskCore("c-0", **options)
    core.on_assigned(dict.fromkeys(partitions or (A,), 0))
    return core


def put_next(core: SinkTaskCore, now_ms: int = 0) -> SinkRecords:
    """Complete the pending conversion of `core`, and return the records of the next put."""
    convert = next(effect for effect in core.next_step(now_ms) if isinstance(effect, Convert))
    [put] = core.converted(records_of(convert.fetched))
    assert isinstance(put, Put)
    return put.records


def offsets_of(records: SinkRecords) -> list[tuple[int, int]]:
    return [(record.original_partition or 0, record.original_offset or 0) for record in records]


def committed(core: SinkTaskCore) -> dict[tuple[str, int], int]:
    """Commit offsets for a task whose `pre_commit` returns its argument. Return the committed offsets."""
    effects = core.on_commit_due()
    [pre_commit] = effects
    assert isinstance(pre_commit, PreCommit)
    effects = core.pre_commit_succeeded(pre_commit.offsets, is_final=False)
    return next((effect.offsets for effect in effects if isinstance(effect, Commit)), {})


def without_polls(effects: Sequence[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Poll)]


def test_put_contains_records_of_all_partitions_of_a_poll() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 2), Chunk(B, 0, 1)])
    assert offsets_of(put_next(core)) == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("records_max", [1, 2, 3])
def test_put_receives_at_most_max_poll_records(records_max: int) -> None:
    core = assigned_core(A, B, records_max=records_max)
    core.on_fetched([Chunk(A, 0, 4), Chunk(B, 0, 3)])
    puts = []
    while sum(map(len, puts)) < 7:
        puts.append(offsets_of(put_next(core)))
        core.put_succeeded(now_ms=0)
    assert max(map(len, puts)) == records_max
    assert [each for put in puts for each in put] == [(0, n) for n in range(4)] + [(1, n) for n in range(3)]


def test_poll_without_records_results_in_a_put_without_records() -> None:
    core = assigned_core()
    [put, poll] = core.on_fetched([])
    assert isinstance(put, Put)
    assert len(put.records) == 0
    assert poll == Poll(1)
    assert core.put_succeeded(now_ms=0) == []


def test_empty_put_that_fails_with_a_retriable_error_is_retried_after_the_delay_that_the_task_set() -> None:
    core = assigned_core()
    core.on_fetched([])
    core.set_retry_timeout(250)
    assert core.put_failed(RetriableError("later"), now_ms=1000) == [SetPaused(frozenset({A}), frozenset())]
    assert core.next_step(1100) == [Wait(1250)]
    [put] = core.next_step(1250)
    assert isinstance(put, Put)
    assert core.put_succeeded(now_ms=1250) == [SetPaused(frozenset(), frozenset({A}))]


def test_records_of_a_put_that_failed_with_a_retriable_error_are_redelivered_before_new_records() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 2)])
    records = put_next(core)
    core.put_failed(RetriableError("later"), now_ms=0)
    core.on_fetched([Chunk(A, 2, 4)])
    assert core.next_step(99) == [Wait(100)]
    assert core.next_step(100) == [Put(records)]
    core.put_failed(RetriableError("later"), now_ms=100)
    assert committed(core) == {}
    assert core.next_step(200) == [Put(records)]
    core.put_succeeded(now_ms=200)
    assert committed(core) == {A: 2}
    assert offsets_of(put_next(core)) == [(0, 2), (0, 3)]


def test_records_that_the_task_lists_in_record_errors_are_reported_and_all_offsets_of_the_put_are_committed() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    records = put_next(core)
    error = DataError("bad")
    effects = core.put_failed(RecordErrors({1: error}), now_ms=0)
    assert effects == [Report(records, 1, error), Reported()]
    assert committed(core) == {}
    core.reported(now_ms=0)
    assert committed(core) == {A: 3}
    assert isinstance(core.next_step(0)[-1], Wait)


def test_only_a_record_with_a_retriable_error_is_redelivered_and_offsets_are_committed_up_to_this_record() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 3), Chunk(B, 0, 2)])
    records = put_next(core)
    error = DataError("bad")
    effects = core.put_failed(RecordErrors({0: error, 1: RetriableError("later")}), now_ms=0)
    assert effects == [Report(records, 0, error), Reported()]
    core.reported(now_ms=0)
    assert committed(core) == {A: 1, B: 2}
    core.on_fetched([Chunk(A, 3, 5)])
    [put] = core.next_step(100)
    assert isinstance(put, Put)
    assert offsets_of(put.records) == [(0, 1)]
    core.put_succeeded(now_ms=100)
    assert committed(core)[A] == 3
    assert offsets_of(put_next(core, 100)) == [(0, 3), (0, 4)]


def test_no_offsets_of_a_put_are_committed_if_its_record_errors_cannot_be_reported() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    put_next(core)
    core.put_failed(RecordErrors({1: DataError("bad")}), now_ms=0)
    [pre_commit, _] = core.on_stop()  # as after a report that raises an exception
    assert pre_commit == PreCommit({A: 0}, is_final=True)


def test_task_fails_if_put_raises_a_record_errors_exception_with_an_index_out_of_range() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    put_next(core)
    [fail] = core.put_failed(RecordErrors({3: DataError("bad")}), now_ms=0)
    assert isinstance(fail, Fail)
    assert str(fail.error) == "put raised RecordErrors for record 3, but there were 3 records"


def test_put_error_that_is_not_retriable_fails_the_task_and_no_offsets_of_this_put_are_committed() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    put_next(core)
    error = ValueError("broken")
    assert core.put_failed(error, now_ms=0) == [Fail(error)]
    [pre_commit, release] = core.on_stop()
    assert pre_commit == PreCommit({A: 0}, is_final=True)
    assert release == Release(frozenset({A}))


def test_revocation_commits_offsets_and_closes_partitions_without_putting_their_fetched_records() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 2)])
    put_next(core)
    core.put_succeeded(now_ms=0)
    core.on_fetched([Chunk(A, 2, 4), Chunk(B, 0, 2)])
    [pre_commit, release] = core.on_revoked([A])
    assert pre_commit == PreCommit({A: 2}, is_final=True)
    assert core.pre_commit_succeeded({A: 2}, is_final=True) == [Commit({A: 2}, is_final=True, number=1)]
    assert isinstance(release, Release)
    assert core.release(release.partitions) == [Close([A]), Closed()]
    assert offsets_of(put_next(core)) == [(1, 0), (1, 1)]


def test_lost_partitions_are_closed_without_an_offset_commit() -> None:
    core = assigned_core(A)
    assert core.on_revoked([A], is_lost=True) == [Release(frozenset({A}))]


def test_records_of_a_revoked_partition_are_not_redelivered_after_a_retriable_error() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 2)])
    put_next(core)
    core.put_failed(RetriableError("later"), now_ms=0)
    core.on_fetched([Chunk(B, 0, 1)])
    core.release(frozenset({A}))
    assert SetPaused(frozenset(), frozenset({B})) in core.closed()
    assert offsets_of(put_next(core)) == [(1, 0)]


def test_consumer_seeks_to_committed_offsets_after_pre_commit_has_failed() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 2)])
    put_next(core)
    core.put_succeeded(now_ms=0)
    core.on_commit_due()
    effects = core.pre_commit_failed(is_final=False)
    assert without_polls(effects) == [Seek({A: 0}), SetPaused(frozenset(), frozenset({A}))]


def test_remaining_partitions_are_rewound_after_pre_commit_has_failed_during_a_revocation() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 2), Chunk(B, 0, 2)])
    put_next(core)
    core.put_succeeded(now_ms=0)
    core.on_revoked([A])
    assert core.pre_commit_failed(is_final=True) == []
    assert core.release(frozenset({A})) == [Close([A]), Closed()]
    assert core.closed()[0] == Seek({B: 0})


def test_offset_that_a_task_requests_during_a_put_takes_effect_when_the_put_has_completed() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    put_next(core)
    core.request_offsets({A: 1})
    effects = core.put_succeeded(now_ms=0)
    assert without_polls(effects)[0] == Seek({A: 1})
    assert core.on_fetched([Chunk(A, 3, 4)], is_current=False) == [Poll(1)]
    assert isinstance(core.next_step(0)[-1], Wait)


def test_records_of_a_partition_that_the_task_paused_are_put_only_after_the_task_resumes_the_partition() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 1), Chunk(B, 0, 1)])
    assert core.pause_partitions([A]) == [SetPaused(frozenset({A}), frozenset({B}))]
    assert offsets_of(put_next(core)) == [(1, 0)]
    core.put_succeeded(now_ms=0)
    core.resume_partitions([A])
    assert offsets_of(put_next(core)) == [(0, 0)]


def test_empty_poll_causes_an_empty_put_if_all_waiting_records_are_of_paused_partitions() -> None:
    """The task itself has paused these partitions. Many tasks resume partitions in `put`."""
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 1), Chunk(B, 0, 1)])
    core.pause_partitions([A])
    assert core.on_fetched([]) == [Poll(2)]  # the record of B is put first
    assert offsets_of(put_next(core)) == [(1, 0)]
    core.put_succeeded(now_ms=0)
    [put, _] = core.on_fetched([])
    assert isinstance(put, Put)
    assert len(put.records) == 0
    core.resume_partitions([A])
    core.put_succeeded(now_ms=0)
    assert offsets_of(put_next(core)) == [(0, 0)]


def test_paused_task_puts_no_records_until_it_is_resumed() -> None:
    core = assigned_core()
    assert core.on_pause() == [SetPaused(frozenset({A}), frozenset()), ReportState(True)]
    assert core.on_fetched([Chunk(A, 0, 1)]) == [Poll(1)]
    assert core.next_step(0) == [Wait(None)]
    assert core.on_fetched([]) == [Poll(1)]
    assert core.on_resume() == [SetPaused(frozenset(), frozenset({A})), ReportState(False)]
    assert offsets_of(put_next(core)) == [(0, 0)]


def test_sink_task_ignores_events_that_arrive_after_its_stop() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 1)])
    core.on_stop()
    core.release(frozenset({A}))
    assert core.on_assigned({B: 0}) == []
    assert core.on_fetched([Chunk(A, 1, 2)]) == []
    assert core.on_commit_due() == core.on_pause() == core.on_stop() == []
    assert core.commit_succeeded({A: 1}, 1) == []
    assert core.next_step(0) == [Wait(None)]


def test_sink_task_polls_again_when_only_the_records_of_one_partition_wait_for_a_put() -> None:
    core = assigned_core(A, B, records_max=2)
    assert core.on_fetched([Chunk(A, 0, 2), Chunk(B, 0, 2)]) == []
    put_next(core)
    core.put_succeeded(now_ms=0)
    assert core.next_step(0)[0] == Poll(1)


def test_committed_offset_advances_past_control_batches() -> None:
    """The poll has returned only control batches and no records."""
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 0, next_offset=5)])
    assert isinstance(core.next_step(0)[-1], Wait)
    assert committed(core) == {A: 5}


def test_pre_commit_offsets_beyond_the_consumed_offset_or_of_unassigned_partitions_are_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = assigned_core()
    core.on_commit_due()
    assert core.pre_commit_succeeded({A: 7, B: 1}, is_final=False) == []
    assert "beyond the consumed offset 0" in caplog.text
    assert "the partition is not assigned" in caplog.text


def test_sink_task_opens_assigned_partitions_in_sorted_order() -> None:
    core = SinkTaskCore("c-0")
    assert core.on_assigned({B: 0, A: 0}) == [Open([A, B]), Opened()]


def test_offsets_and_pauses_that_the_task_requests_in_open_take_effect_before_the_first_put() -> None:
    core = SinkTaskCore("c-0")
    core.on_assigned({A: 0, B: 0})
    core.request_offsets({A: 3})
    core.pause_partitions([B])
    assert core.opened()[:2] == [SetPaused(frozenset({B}), frozenset({A})), Seek({A: 3, B: 0})]


def test_newest_commit_determines_the_committed_offset_even_if_an_earlier_commit_had_a_higher_offset() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 5)])
    put_next(core)
    core.request_offsets({A: 1})
    core.put_succeeded(now_ms=0)
    core.commit_succeeded({A: 5}, 1)
    core.commit_succeeded({A: 1}, 2)
    core.commit_succeeded({A: 5}, 1)  # the first commit's result arrives after the second commit's
    assert core.pre_commit_failed(is_final=False)[0] == Seek({A: 1})


def test_put_is_called_without_records_and_offsets_are_committed_if_transforms_drop_all_records() -> None:
    core = assigned_core()
    core.on_fetched([Chunk(A, 0, 3)])
    core.next_step(0)
    [put] = core.converted(SinkRecords())
    assert isinstance(put, Put)
    assert not put.records
    core.put_succeeded(now_ms=0)
    assert committed(core) == {A: 3}


def test_records_that_are_selected_from_sink_records_keep_their_partitions_and_order() -> None:
    records = SinkRecords([SinkBatch("t", [0, 1, 2], partition=0, offsets=[0, 1, 2]),
                           SinkBatch("t", [3, 4], partition=1, offsets=[0, 1])])  # fmt: skip
    taken = records.take([0, 2, 4])
    assert [(record.partition, record.offset, record.value) for record in taken] == [(0, 0, 0), (0, 2, 2), (1, 1, 4)]
    assert records[-1].value == 4
    assert [record.value for record in records[1:4]] == [1, 2, 3]
    with pytest.raises(IndexError, match="record index 5 is out of range: there are 5 records"):
        records[5]


def test_task_leaves_its_group_without_a_commit_if_another_worker_might_run_the_task() -> None:
    core = assigned_core(A, B)
    core.on_fetched([Chunk(A, 0, 2)])
    put_next(core)
    core.put_succeeded(now_ms=0)
    assert core.on_confirmed(False) == [Release(frozenset({A, B})), LeaveGroup()]
    assert core.on_confirmed(False) == []
    assert core.release(frozenset({A, B})) == [Close([A, B]), Closed()]
    core.closed()
    # The consumer may have sent these events before it left the group.
    assert core.on_assigned({A: 0}) == []
    assert core.on_fetched([]) == []
    assert core.on_fetched([Chunk(A, 2, 4)]) == []
    assert core.on_revoked([A]) == []
    assert core.on_commit_due() == []
    assert core.next_step(0) == [Wait(None)]
    assert core.assignment == frozenset()


def test_task_continues_at_the_committed_offsets_after_it_has_rejoined_its_group() -> None:
    """The task leaves the group if another worker might run the task. After that, the task joins the group again."""
    core = assigned_core(A)
    core.on_fetched([Chunk(A, 0, 4)])
    core.on_confirmed(False)
    core.release(frozenset({A}))
    core.closed()
    assert core.on_confirmed(True) == [JoinGroup()]
    assert core.on_assigned({A: 2}) == [Open([A]), Opened()]
    assert core.opened() == []
    core.on_fetched([Chunk(A, 2, 4)])
    assert offsets_of(put_next(core)) == [(0, 2), (0, 3)]
    core.put_succeeded(now_ms=0)
    assert committed(core) == {A: 4}


def test_failed_put_with_records_is_not_retried_if_another_worker_might_run_the_task() -> None:
    core = assigned_core(A)
    core.on_fetched([Chunk(A, 0, 2)])
    put_next(core)
    core.put_failed(RetriableError("later"), now_ms=0)
    core.on_confirmed(False)
    core.release(frozenset({A}))
    core.closed()
    assert core.next_step(1000) == [Wait(None)]
    core.on_confirmed(True)
    assert core.next_step(1000) == [Wait(None)]


def test_failed_put_without_records_is_not_retried_if_another_worker_might_run_the_task() -> None:
    core = SinkTaskCore("c-0")
    core.on_fetched([])
    core.put_failed(RetriableError("later"), now_ms=0)
    assert core.on_confirmed(False) == [LeaveGroup()]
    assert core.next_step(1000) == [Wait(None)]


def test_stopped_sink_task_does_not_rejoin_its_group() -> None:
    """Before the stop, the task has left its consumer group, because another worker might run the task.

    After the stop, the worker confirms that it may run the task. A running task would then rejoin its group.
    """
    core = assigned_core(A)
    core.on_confirmed(False)
    core.release(frozenset({A}))
    assert core.on_stop() == []
    assert core.on_confirmed(True) == []
