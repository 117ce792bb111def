from __future__ import annotations

import pytest

from headrace_broker.client.fetch_core import FetchAction, FetchCore, RequestedPartition
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


def plan(core: FetchCore, now_ms: float = 0) -> dict[int, list[RequestedPartition]]:
    return core.plan(now_ms, lambda topic, partition: (1, 5), lambda node: True)[0]


def batch_at(offset: int, count: int, **options: int | bool) -> bytes:
    columns = RecordColumns([b"%d" % (offset + index) for index in range(count)], timestamps=1)
    return bytes(build_batch(columns, base_offset=offset, **options))  # type: ignore[arg-type]


def receive(core: FetchCore, requested: RequestedPartition, records: bytes, **options: object) -> FetchAction:
    core.fetch_done(1)
    action = core.receive(1, requested, memoryview(records), high_watermark=100, **options)  # type: ignore[arg-type]
    core.record_response_size(1, len(records))
    return action


def test_fetch_core_prefetches_at_most_one_response_from_each_node() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    assert (requested.fetch_offset, requested.leader_epoch, requested.max_bytes) == (0, 5, 1000)
    assert plan(core) == {}  # the request is in flight
    assert receive(core, requested, batch_at(0, 3)) is FetchAction.RECORDS
    assert plan(core) == {}  # one response is buffered
    chunk = core.next_chunk()
    assert chunk is not None
    assert (chunk.from_offset, chunk.next_offset, chunk.high_watermark) == (0, 3, 100)
    (requested,) = plan(core)[1]
    assert requested.fetch_offset == 3


def test_position_advances_only_after_the_consumer_has_received_the_records() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    receive(core, requested, batch_at(0, 3))
    assert core.position(P0) == 0
    chunk = core.next_chunk()
    assert chunk is not None
    core.advance_position("t", 0, chunk.next_offset)
    assert core.position(P0) == 3


def test_response_to_a_fetch_that_was_sent_before_a_seek_is_discarded() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    core.seek(P0, 50)
    assert receive(core, requested, batch_at(0, 3)) is FetchAction.NONE
    assert core.next_chunk() is None
    assert plan(core)[1][0].fetch_offset == 50


def test_seek_drops_the_prefetched_records_of_the_partition() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    receive(core, requested, batch_at(0, 3))
    core.seek(P0, 1)
    assert core.next_chunk() is None
    assert plan(core)[1][0].fetch_offset == 1


def test_paused_partition_keeps_its_prefetched_records_and_is_not_fetched() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    core.pause(P0)
    receive(core, requested, batch_at(0, 3))
    assert core.next_chunk() is None
    assert plan(core) == {}
    core.resume(P0)
    assert core.next_chunk() is not None


def test_incomplete_batch_at_the_end_of_a_response_is_fetched_again() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    second = batch_at(3, 2)
    receive(core, requested, batch_at(0, 3) + second[:-1])
    chunk = core.next_chunk()
    assert chunk is not None
    assert chunk.next_offset == 3
    assert read_columns(chunk.spans[0]).values == [b"0", b"1", b"2"]


def test_fetch_size_grows_if_response_has_only_an_incomplete_batch() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    whole = bytes(build_batch(RecordColumns([b"x" * 5000], timestamps=1)))
    assert receive(core, requested, whole[:1000]) is FetchAction.NONE
    assert plan(core)[1][0].max_bytes >= len(whole)


def test_position_skips_compaction_gaps_and_control_batches() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    marker = bytes(
        build_control_batch(ControlType.COMMIT, end_transaction_value(0), timestamp=1, base_offset=9, producer_id=4)
    )
    receive(core, requested, batch_at(5, 2) + marker)  # compaction removed offsets 0-4 and 7-8
    chunk = core.next_chunk()
    assert chunk is not None
    assert chunk.next_offset == 10
    assert read_columns(chunk.spans[0]).values == [b"5", b"6"]


def test_read_committed_fetch_excludes_records_of_aborted_transactions() -> None:
    core = make_core(read_committed=True)
    (requested,) = plan(core)[1]
    aborted = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    committed = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    abort = bytes(
        build_control_batch(ControlType.ABORT, end_transaction_value(0), timestamp=1, base_offset=6, producer_id=4)
    )
    records = batch_at(0, 2) + batch_at(2, 2, **aborted) + batch_at(4, 2, **committed) + abort
    after = batch_at(7, 1, **{**aborted, "base_sequence": 2})
    receive(core, requested, records + after, aborted=[(4, 2)])
    chunk = core.next_chunk()
    assert chunk is not None
    values = [value for span in chunk.spans for value in read_columns(span).values]
    assert values == [b"0", b"1", b"4", b"5", b"7"]
    assert chunk.next_offset == 8


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FetchAction.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_ID, FetchAction.REFRESH_METADATA),
        (ErrorCode.OFFSET_OUT_OF_RANGE, FetchAction.RESET_POSITION),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, FetchAction.RAISE_ERROR),
    ],
)
def test_fetch_error_code_determines_whether_metadata_is_refreshed_or_position_is_reset_or_error_is_raised(
    code: ErrorCode, action: FetchAction
) -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    core.fetch_done(1)
    assert core.handle_error(requested, code, 0) is action
    if action is FetchAction.REFRESH_METADATA:
        assert plan(core, 50) == {}
        assert core.retry_at_ms(50) == 100
        assert plan(core, 100)


def test_partitions_are_fetched_round_robin() -> None:
    core = FetchCore(partition_bytes_max=1000, backoff_ms=lambda attempts: 100)
    core.assign([P0, P1])
    core.seek(P0, 0)
    core.seek(P1, 0)
    first = plan(core)[1]
    assert [(part.topic, part.partition) for part in first] == [P0, P1]
    core.fetch_done(1)
    assert [(part.topic, part.partition) for part in plan(core)[1]] == [P1, P0]


def test_assignment_change_keeps_prefetched_records_of_retained_partitions() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    receive(core, requested, batch_at(0, 3))
    core.assign([P0, P1])
    assert core.partitions_without_position() == [P1]
    core.assign([P1])
    assert core.next_chunk() is None


def plan_at(
    core: FetchCore, now_ms: float = 0, epoch: int = 5, replicas: tuple[int, ...] = (1, 2)
) -> tuple[dict[int, list[RequestedPartition]], set[str]]:
    return core.plan(
        now_ms, lambda topic, partition: (1, epoch), lambda node: True, lambda t, p, node: node in replicas
    )


def core_with_preferred_replica() -> tuple[FetchCore, RequestedPartition]:
    """Return a core that fetches from preferred read replica 2.

    The preferred read replica expires at 1000 ms. The leader is node 1.
    """
    core = make_core()
    (requested,) = plan(core)[1]
    core.fetch_done(1)
    core.set_preferred_replica(requested, 2, 1000)
    (requested,) = plan(core, 10)[2]
    core.fetch_done(2)
    return core, requested


def test_consumer_fetches_from_the_leader_after_the_preferred_read_replica_expires() -> None:
    core, requested = core_with_preferred_replica()
    assert not requested.is_from_leader
    assert list(plan_at(core, 999)[0]) == [2]
    core.fetch_done(2)
    assert list(plan_at(core, 1000)[0]) == [1]


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_consumer_fetches_from_the_leader_after_an_error_of_the_preferred_read_replica(code: ErrorCode) -> None:
    """The consumer does not reset its position."""
    core, requested = core_with_preferred_replica()
    assert core.handle_error(requested, code, 10) is not FetchAction.RESET_POSITION
    assert core.position(P0) == 0
    [requested] = plan(core, 10)[1]
    assert (requested.is_from_leader, requested.allow_preferred_replica) == (True, False)
    core.fetch_done(1)
    assert plan(core, 1010)[1][0].allow_preferred_replica


def test_consumer_fetches_from_the_leader_after_the_preferred_read_replica_disconnects() -> None:
    core, requested = core_with_preferred_replica()
    core.handle_disconnect(requested, 10)
    assert list(plan(core, 10)) == [1]
    core, _ = core_with_preferred_replica()
    core.drop_preferred_replica(2, 10)
    assert list(plan(core, 10)) == [1]


def test_consumer_fetches_from_the_leader_after_a_leader_change() -> None:
    """The consumer no longer uses its preferred read replica."""
    core, _ = core_with_preferred_replica()
    assert list(plan_at(core, 10, epoch=6)[0]) == [1]


def test_consumer_refreshes_metadata_if_the_metadata_lacks_the_preferred_read_replica() -> None:
    core, _ = core_with_preferred_replica()
    plans, outdated = plan_at(core, 10, replicas=(1,))
    assert (list(plans), outdated) == ([1], {"t"})


def test_response_to_a_fetch_sent_before_a_seek_does_not_change_the_preferred_read_replica() -> None:
    core = make_core()
    (requested,) = plan(core)[1]
    core.seek(P0, 50)
    core.set_preferred_replica(requested, 2, 1000)
    core.fetch_done(1)
    assert list(plan(core)) == [1]


def test_partition_is_not_fetched_from_a_leader_whose_epoch_is_older_than_the_leader_epoch_of_the_position() -> None:
    """KIP-320: a former leader may lack the newest records and reject a valid offset as out of range."""
    core = make_core()
    core.seek(P0, 52, leader_epoch=6)
    plans, outdated = core.plan(0, lambda topic, partition: (1, 5), lambda node: True)
    assert (plans, outdated) == ({}, {"t"})
    (requested,) = core.plan(10, lambda topic, partition: (2, 6), lambda node: True)[0][2]
    assert (requested.fetch_offset, requested.leader_epoch) == (52, 6)


def test_consumer_waits_only_a_limited_time_for_a_newer_leader_epoch() -> None:
    """The position's leader epoch may come from a deleted topic of the same name, so the consumer stops waiting."""
    core = make_core()
    core.seek(P0, 52, leader_epoch=6)
    assert plan(core, now_ms=0) == {} == plan(core, now_ms=29_000)
    assert plan(core, now_ms=30_000)[1][0].fetch_offset == 52


def test_partition_is_not_fetched_from_its_end_offset_on() -> None:
    core = make_core()
    core.set_end(P0, 5)
    (requested,) = plan(core)[1]
    receive(core, requested, batch_at(0, 3))
    core.next_chunk()
    (requested,) = plan(core)[1]
    receive(core, requested, batch_at(3, 3))
    chunk = core.next_chunk()
    assert chunk is not None
    assert chunk.next_offset == 6  # the last batch contains the end offset
    assert plan(core) == {}
    core.set_end(P0, None)
    assert plan(core)[1][0].fetch_offset == 6
