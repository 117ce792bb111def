from __future__ import annotations

import gc
import weakref
from functools import partial

from headrace_broker.client.accumulator import Accumulator, concatenate, estimate_bytes, split_into_runs
from headrace_broker.client.delivery import (
    Delivery,
    DeliveryPart,
    RecordMetadata,
    acknowledge,
    fail,
    split_parts,
)
from headrace_broker.client.errors import ClientError
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


class ResultRecorder:
    def __init__(self) -> None:
        self.results: list[tuple[RecordMetadata | None, ClientError | None]] = []

    def __call__(self, result: RecordMetadata | None, error: ClientError | None) -> None:
        self.results.append((result, error))


def create_delivery(parts: int) -> tuple[Delivery, ResultRecorder]:
    recorder = ResultRecorder()
    delivery = Delivery("t", recorder)
    for _ in range(parts):
        delivery.expect_part()
    delivery.seal()
    return delivery, recorder


def test_each_send_in_a_shared_batch_receives_its_own_base_offset() -> None:
    (first, first_recorder), (second, second_recorder) = create_delivery(1), create_delivery(1)
    acknowledge([DeliveryPart(first, 3), DeliveryPart(second, 2)], 1, 100)
    assert first_recorder.results == [(RecordMetadata("t", 1, 100, 3), None)]
    assert second_recorder.results == [(RecordMetadata("t", 1, 103, 2), None)]


def test_record_metadata_of_a_send_combines_the_metadata_of_all_its_batches() -> None:
    delivery, recorder = create_delivery(2)
    acknowledge([DeliveryPart(delivery, 3)], 0, 10)
    assert recorder.results == []
    acknowledge([DeliveryPart(delivery, 2)], 0, 13)
    ((result, error),) = recorder.results
    assert result is not None
    assert (result.partition, result.base_offset, result.count, len(result.parts), error) == (0, 10, 5, 2, None)


def test_record_metadata_of_a_send_to_several_partitions_has_no_base_offset() -> None:
    delivery, recorder = create_delivery(2)
    acknowledge([DeliveryPart(delivery, 3)], 0, 10)
    acknowledge([DeliveryPart(delivery, 2)], 1, 20)
    result, _ = recorder.results[0]
    assert result is not None
    assert (result.partition, result.base_offset, result.count) == (-1, -1, 5)


def test_send_with_a_failed_batch_fails_only_after_all_its_batches_complete() -> None:
    delivery, recorder = create_delivery(2)
    error = ClientError("no")
    fail([DeliveryPart(delivery, 3)], error)
    assert recorder.results == []
    acknowledge([DeliveryPart(delivery, 2)], 1, 20)
    assert recorder.results == [(RecordMetadata("t", 1, 20, 2), error)]


def test_send_whose_batch_is_split_completes_after_both_parts_are_acknowledged() -> None:
    (first, _), (second, recorder) = create_delivery(1), create_delivery(1)
    head, tail = split_parts([DeliveryPart(first, 2), DeliveryPart(second, 4)], 3)
    assert [(part.delivery, part.count) for part in head] == [(first, 2), (second, 1)]
    assert [(part.delivery, part.count) for part in tail] == [(second, 3)]
    acknowledge(head, 0, 0)
    assert recorder.results == []
    acknowledge(tail, 0, 3)
    assert recorder.results[0][0] is not None


def test_record_columns_with_and_without_keys_or_headers_are_concatenated() -> None:
    plain = RecordColumns([b"1", None], timestamps=5)
    keyed = RecordColumns([b"2"], keys=[b"k"], headers=[[("h", b"v")]], timestamps=[6])
    joined_columns = concatenate([plain, keyed])
    assert (joined_columns.values, joined_columns.keys) == ([b"1", None, b"2"], [None, None, b"k"])
    assert joined_columns.headers == [[], [], [("h", b"v")]]
    assert joined_columns.timestamps == [5, 5, 6]
    assert concatenate([plain, plain]).timestamps == 5


def test_estimated_batch_size_is_never_below_the_real_size() -> None:
    for columns in (
        RecordColumns([b"x" * 100] * 500, timestamps=1),
        RecordColumns([b"x" * 1000] * 50, keys=[b"key"] * 50, timestamps=list(range(50))),
        RecordColumns([b"x"] * 50, headers=[[("name", b"value"), ("n", None)]] * 50, timestamps=1),
        RecordColumns([None] * 50, keys=[b"k"] * 50, timestamps=1),
    ):
        assert estimate_bytes(columns) + 61 >= len(build_batch(columns))


def test_records_are_split_into_runs_of_limited_size_in_their_original_order() -> None:
    values: list[bytes | None] = [b"%d" % index * (1 + index % 50) for index in range(1000)]
    columns = RecordColumns(list(values), timestamps=1)
    found_runs = list(split_into_runs(columns, estimate_bytes(columns), 5_000))
    assert [value for run, _ in found_runs for value in run.values] == values
    assert all(len(build_batch(run)) <= 5_000 + 61 for run, _ in found_runs)
    (single,) = split_into_runs(RecordColumns([b"x" * 9_000]), 9_012, 5_000)
    assert len(single[0]) == 1


def test_buffered_records_of_several_send_calls_can_be_separated_again() -> None:
    """The split returns one `Accumulator` object for each `send` call."""
    delivery, _ = create_delivery(2)
    accumulator = Accumulator("t", 0, 0.0)
    accumulator.add(RecordColumns([b"1"], timestamps=1), 13, DeliveryPart(delivery, 1))
    accumulator.add(RecordColumns([b"2"], timestamps=1), 13, DeliveryPart(delivery, 1))
    assert accumulator.columns().values == [b"1", b"2"]
    assert [single.columns().values for single in accumulator.split_by_send()] == [[b"1"], [b"2"]]


def test_completed_send_is_freed_without_garbage_collection() -> None:
    delivery, recorder = create_delivery(1)
    open_deliveries = {delivery}
    delivery.add_listener(partial(open_deliveries.discard, delivery))
    reference = weakref.ref(recorder)
    gc.disable()
    try:
        acknowledge([DeliveryPart(delivery, 1)], 0, 0)
        del delivery, recorder
        assert reference() is None
    finally:
        gc.enable()


def test_failed_send_reports_its_acknowledged_batches() -> None:
    delivery, recorder = create_delivery(3)
    error = ClientError("no")
    acknowledge([DeliveryPart(delivery, 3)], 0, 10)
    fail([DeliveryPart(delivery, 1)], error)
    acknowledge([DeliveryPart(delivery, 2)], 1, 20)
    [(result, failure)] = recorder.results
    assert failure is error
    assert result is not None
    assert result.count == 5
