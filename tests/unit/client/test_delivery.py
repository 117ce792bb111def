from __future__ import annotations

import gc
import weakref
from functools import partial

from headrace_broker.client.accumulator import Accumulator, concatenate, estimate_bytes, runs
from headrace_broker.client.delivery import Delivery, RecordMetadata, Share, acknowledge, cut, fail
from headrace_broker.client.errors import ClientError
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


class Told:
    def __init__(self) -> None:
        self.results: list[tuple[RecordMetadata | None, ClientError | None]] = []

    def __call__(self, result: RecordMetadata | None, error: ClientError | None) -> None:
        self.results.append((result, error))


def delivery(parts: int) -> tuple[Delivery, Told]:
    told = Told()
    made = Delivery("t", told)
    for _ in range(parts):
        made.expect_part()
    made.sealed()
    return made, told


def test_shares_of_one_batch_get_their_own_offsets() -> None:
    (first, told_first), (second, told_second) = delivery(1), delivery(1)
    acknowledge([Share(first, 3), Share(second, 2)], 1, 100)
    assert told_first.results == [(RecordMetadata("t", 1, 100, 3), None)]
    assert told_second.results == [(RecordMetadata("t", 1, 103, 2), None)]


def test_several_parts_are_summed_up() -> None:
    made, told = delivery(2)
    acknowledge([Share(made, 3)], 0, 10)
    assert told.results == []
    acknowledge([Share(made, 2)], 0, 13)
    ((result, error),) = told.results
    assert result is not None
    assert (result.partition, result.base_offset, result.count, len(result.parts), error) == (0, 10, 5, 2, None)


def test_parts_in_several_partitions_have_no_single_offset() -> None:
    made, told = delivery(2)
    acknowledge([Share(made, 3)], 0, 10)
    acknowledge([Share(made, 2)], 1, 20)
    result, _ = told.results[0]
    assert result is not None
    assert (result.partition, result.base_offset, result.count) == (-1, -1, 5)


def test_one_failure_fails_the_whole_after_all_parts_are_known() -> None:
    made, told = delivery(2)
    error = ClientError("no")
    fail([Share(made, 3)], error)
    assert told.results == []
    acknowledge([Share(made, 2)], 1, 20)
    assert told.results == [(RecordMetadata("t", 1, 20, 2), error)]


def test_shares_are_cut_where_a_batch_is_split() -> None:
    (first, _), (second, told) = delivery(1), delivery(1)
    head, tail = cut([Share(first, 2), Share(second, 4)], 3)
    assert [(share.delivery, share.count) for share in head] == [(first, 2), (second, 1)]
    assert [(share.delivery, share.count) for share in tail] == [(second, 3)]
    acknowledge(head, 0, 0)
    assert told.results == []
    acknowledge(tail, 0, 3)
    assert told.results[0][0] is not None


def test_columns_of_all_shapes_are_concatenated() -> None:
    plain = RecordColumns([b"1", None], timestamps=5)
    keyed = RecordColumns([b"2"], keys=[b"k"], headers=[[("h", b"v")]], timestamps=[6])
    joined = concatenate([plain, keyed])
    assert (joined.values, joined.keys) == ([b"1", None, b"2"], [None, None, b"k"])
    assert joined.headers == [[], [], [("h", b"v")]]
    assert joined.timestamps == [5, 5, 6]
    assert concatenate([plain, plain]).timestamps == 5


def test_the_estimate_is_not_below_the_built_size() -> None:
    for columns in (
        RecordColumns([b"x" * 100] * 500, timestamps=1),
        RecordColumns([b"x" * 1000] * 50, keys=[b"key"] * 50, timestamps=list(range(50))),
        RecordColumns([b"x"] * 50, headers=[[("name", b"value"), ("n", None)]] * 50, timestamps=1),
        RecordColumns([None] * 50, keys=[b"k"] * 50, timestamps=1),
    ):
        assert estimate_bytes(columns) + 61 >= len(build_batch(columns))


def test_runs_are_bounded_and_keep_everything_in_order() -> None:
    values: list[bytes | None] = [b"%d" % index * (1 + index % 50) for index in range(1000)]
    columns = RecordColumns(list(values), timestamps=1)
    pieces = list(runs(columns, estimate_bytes(columns), 5_000))
    assert [value for piece, _ in pieces for value in piece.values] == values
    assert all(len(build_batch(piece)) <= 5_000 + 61 for piece, _ in pieces)
    (single,) = runs(RecordColumns([b"x" * 9_000]), 9_012, 5_000)
    assert len(single[0]) == 1


def test_an_accumulator_falls_apart_into_its_sends() -> None:
    made, _ = delivery(2)
    gathered = Accumulator("t", 0, 0.0)
    gathered.add(RecordColumns([b"1"], timestamps=1), 13, Share(made, 1))
    gathered.add(RecordColumns([b"2"], timestamps=1), 13, Share(made, 1))
    assert gathered.columns().values == [b"1", b"2"]
    assert [single.columns().values for single in gathered.singles()] == [[b"1"], [b"2"]]


def test_a_delivery_that_is_done_needs_no_garbage_collector() -> None:
    made, told = delivery(1)
    open_deliveries = {made}
    made.add_listener(partial(open_deliveries.discard, made))
    gone = weakref.ref(told)
    gc.disable()
    try:
        acknowledge([Share(made, 1)], 0, 0)
        del made, told
        assert gone() is None
    finally:
        gc.enable()


def test_a_failure_tells_what_was_written_all_the_same() -> None:
    made, told = delivery(3)
    error = ClientError("no")
    acknowledge([Share(made, 3)], 0, 10)
    fail([Share(made, 1)], error)
    acknowledge([Share(made, 2)], 1, 20)
    [(result, failure)] = told.results
    assert failure is error
    assert result is not None
    assert result.count == 5
